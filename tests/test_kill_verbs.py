"""Killed without warning at random moments: what was finished is there, and the next run succeeds."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embrew.encoder import Encoder
from embrew.settings.encoder import Demonstrations, Pooling
from tests.adapting.test_adapt import LBR, TINY
from tests.conftest import SENTENCES, stir
from tests.killing import content, killed, partial, run

KILLS = 16
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs(model_folder, tmp_path_factory) -> Path:
    """An encoder, a corpus and demonstrations, each in an older and a newer version; and pairs."""
    place = tmp_path_factory.mktemp("inputs")
    settings: dict[str, Any] = {"template": "{instruction}{text}{memory}", "pooling": Pooling("mean", "memory")}
    settings |= {"attention": "causal", "demonstrations": Demonstrations(compress="none"), "max_length": 128}
    documents = [(f"d{i}", f"{SENTENCES[i % 5]} Part {i}.") for i in range(2000)]
    newer = [("first", "A new row."), *(row for i, row in enumerate(documents) if i % 50), ("last", "Another.")]
    for name, rows in (("old", documents), ("new", newer)):
        encoder = Encoder.from_pretrained(model_folder("llama"), memory_tokens=3, **settings)
        encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
        stir(encoder.backbone, seed=len(name) + (name == "new"))
        encoder.steps = 1
        encoder.save_pretrained(place / f"encoder-{name}", verify="off")
        write(place / f"corpus-{name}.jsonl", [{"_id": number, "text": text} for number, text in rows])
    asked = [{"query": f"{text[:20]} {i}?", "positive": f"{i}: {text}"} for i in range(40) for text in SENTENCES]
    write(place / "pairs.jsonl", asked)
    write(place / "demos.jsonl", [{"query": text[:15], "response": text} for text in SENTENCES])
    return place


def write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


Command = Callable[[Path, str, Path], list[object]]  # of the inputs, "old" or "new", and the target
FROM_NOTHING: dict[str, Command] = {
    "merge": lambda given, version, out: ["merge", given / f"encoder-{version}", out],
    "merge without a check": lambda given, version, out: [
        *("merge", given / f"encoder-{version}", out, "--verify", "off")
    ],
    "average": lambda given, version, out: [
        *("average", given / "encoder-old", given / f"encoder-{version}", "--output", out, "--verify", "off")
    ],
    "center": lambda given, version, out: [
        *("center", given / f"encoder-{version}", "--texts", given / "pairs.jsonl", "-o", out, "--verify", "off")
    ],
    "export": lambda given, version, out: ["export", given / f"encoder-{version}", out, "--verify", "off"],
    "data mine": lambda given, version, out: [
        *("data", "mine", given / f"encoder-{version}", given / "pairs.jsonl", out)
    ],
    "search": lambda given, version, out: [
        *("search", given / "encoder-old", "--build", given / f"corpus-{version}.jsonl", "--index", out)
    ],
}
REPLACING: dict[str, Command] = {
    "context add": lambda given, version, out: [
        *("context", "add", out, "task", "--demos", given / "demos.jsonl", "--instruction", f"{version}: ")
    ],
    "encode": lambda given, version, out: [
        *("encode", given / "encoder-old", given / f"corpus-{version}.jsonl", out, "--shard-rows", 16)
    ],
    "search --update": lambda given, version, out: [
        *("search", given / "encoder-old", "--index", out),
        *("--build" if version == "old" else "--update", given / f"corpus-{version}.jsonl"),
    ],
}


@pytest.mark.parametrize("verb", [*FROM_NOTHING, *REPLACING])
def test_there_is_the_old_one_or_the_new_one(verb, inputs, tmp_path):
    """To the byte, and in the end the new one without leftovers; where nothing was, nothing or the new one."""
    command = {**FROM_NOTHING, **REPLACING}[verb]
    old, undisturbed, target = (tmp_path / name / "target" for name in ("old", "undisturbed", "out"))
    for path in (old, undisturbed, target):
        path.parent.mkdir()
    if verb == "context add":
        shutil.copytree(inputs / "encoder-old", old)
    run(command(inputs, "old", old), place=tmp_path)
    copy = shutil.copytree if old.is_dir() else shutil.copy
    copy(old, undisturbed)
    replace = "--update" if verb == "encode" else "--overwrite"
    seconds = run([*command(inputs, "new", undisturbed), replace], place=tmp_path)
    before, after = content(old), content(undisturbed)
    assert before != after
    draw = random.Random(0)
    for kill in range(KILLS):
        begun = verb in REPLACING or kill % 3
        shutil.rmtree(target.parent)
        target.parent.mkdir()
        if begun:
            copy(old, target)
        arguments = [*command(inputs, "new", target), replace]
        killed(arguments, place=tmp_path, watched=target.parent, seconds=seconds, draw=draw)
        assert content(target) in ((before, after) if begun else (after,)) if target.exists() else not begun
        run(arguments, place=tmp_path)
        assert content(target) == after
        assert [path.name for path in target.parent.iterdir()] == ["target"] and not partial(tmp_path)


def test_adapt(model_folder, tmp_path):
    """What was finished when it was killed is the same file in the end; the rest is what an undisturbed run writes."""
    texts = [f"Number {i} comes first. {SENTENCES[i % 5]} Then {i * 7} follows in case {i}." for i in range(40)]
    (tmp_path / "docs").mkdir()
    for i, text in enumerate(texts):
        (tmp_path / "docs" / f"{i}.md").write_text(f"# Case {i}\n\n{text}\n")
    write(tmp_path / "qa.jsonl", [{"question": f"What is case {i}?", "answer": text} for i, text in enumerate(texts)])
    given = [model_folder("llama"), "--docs", tmp_path / "docs", "--pairs", tmp_path / "qa.jsonl", "--method", "lbr"]
    given += [*TINY, *LBR, "encoder.dtype=float32", "--quick", "--no-export"]
    undisturbed, output = tmp_path / "undisturbed", tmp_path / "out"
    seconds = run(["adapt", *given, "-o", undisturbed], place=tmp_path)
    arguments, finished = ["adapt", *given, "-o", output], dict[str, str]()
    for number in range(KILLS):
        killed(arguments, place=tmp_path, watched=output, seconds=seconds, draw=random.Random(number))
        now = done_steps(output)
        assert all(now[name] == sha256 for name, sha256 in finished.items())
        finished = now
    run(arguments, place=tmp_path)
    assert outcome(output) == outcome(undisturbed) and not partial(tmp_path)


def done_steps(output: Path) -> dict[str, str]:
    """Files of the finished steps: the data, results, and trained stages."""
    stages = ("contrast/contrast", "lbr/learn", "lbr/contrast")
    places = ("data/", "dev/", "results/", *(f"model/llama--{stage}/" for stage in stages))
    return {
        name: sha256
        for name, sha256 in content(output).items()
        if name.startswith(places) and not any(part.startswith(".") for part in Path(name).parts)
    }


def outcome(output: Path) -> dict[str, object]:
    """What an adaptation gives, without times: data, weights, and all scores."""
    models = json.loads((output / "adapted.json").read_text())["models"]
    written = {
        name: sha256
        for name, sha256 in done_steps(output).items()
        if name.startswith("data/") or name.endswith((".safetensors", ".examples.json"))
    }
    return {**written, "report": [{key: row[key] for key in row if "seconds" not in key} for row in models]}
