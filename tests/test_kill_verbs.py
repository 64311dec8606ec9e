"""Killed without warning at random moments: what was finished is there, and the next run succeeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embrew.encoder import Encoder
from embrew.settings.encoder import Demonstrations, Pooling
from tests.conftest import SENTENCES, stir
from tests.domain.test_run import TINY
from tests.killing import Found, content, loop, measured, partial, run

KILLS = 16
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two encoders with memory tokens and an adapter; they differ in the adapter."""
    folders = []
    settings: dict[str, Any] = {"template": "{instruction}{text}{memory}", "pooling": Pooling("mean", "memory")}
    settings |= {"attention": "causal", "demonstrations": Demonstrations(compress="none")}
    for seed in (2, 3):
        encoder = Encoder.from_pretrained(model_folder("llama"), memory_tokens=3, **settings)
        encoder.max_length.update(query=128, document=128)
        encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
        stir(encoder.backbone, seed=seed)
        encoder.steps = 1
        folders.append(tmp_path_factory.mktemp("trained") / f"encoder-{seed}")
        encoder.save_pretrained(folders[-1], verify="fast")
    return folders[0], folders[1]


def pairs(path: Path) -> Path:
    rows = [{"query": f"{text[:20]} {i}?", "positive": f"{i}: {text}"} for i in range(40) for text in SENTENCES]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def killed_while_it_replaces(
    name: str, command: Callable[[Path, Path], list[object]], sources: tuple[Path, Path], place: Path, off: bool = True
) -> None:
    """Kill a verb that writes one file or folder: where there is none yet, then over an earlier one.

    With `--verify off` too (`off`): most of the time after writing has begun is then that of writing and replacing.
    """
    target, kept = place / "out" / "target", place / "old"
    target.parent.mkdir(parents=True)
    run(command(sources[0], kept), place=place)
    old = content(kept)

    def remove() -> None:
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)

    def renew() -> None:
        remove()
        (shutil.copytree if kept.is_dir() else shutil.copy)(kept, target)

    def killed(options: list[object], kills: int, seed: int, again: Callable[[], None]) -> Found:
        asked = [*command(sources[1], target), *options]
        again()
        times = measured(asked, target.parent, place=place)
        new = content(target)
        assert new != old
        again()

        def state() -> str:
            if not target.exists():
                return "nothing"
            return {json.dumps(old): "the old one", json.dumps(new): "the new one"}[json.dumps(content(target))]

        said = " ".join(map(str, [name, *options])) + (", where nothing was" if again is remove else "")
        found = loop(said, asked, target.parent, state, place=place, kills=kills, seed=seed, times=times, again=again)
        again()
        run(asked, place=place)
        assert content(target) == new, "the same bytes as of a run that nothing disturbed"
        assert sorted(path.name for path in target.parent.iterdir()) == ["target"], "leftovers are gone"
        assert not partial(place)
        return found

    first = killed([], KILLS // 4, 0, remove)
    assert first.states.keys() <= {"nothing", "the new one"}
    over = killed(["--overwrite"], KILLS // 2 if off else KILLS, 1, renew)
    assert "nothing" not in over.states
    if off:
        quick = killed(["--overwrite", "--verify", "off"], KILLS // 2, 2, renew)
        assert "nothing" not in quick.states


def test_merge(trained: tuple[Path, Path], tmp_path: Path) -> None:
    killed_while_it_replaces("merge", lambda source, out: ["merge", source, out], trained, tmp_path)


def test_export(trained: tuple[Path, Path], tmp_path: Path) -> None:
    killed_while_it_replaces("export", lambda source, out: ["export", source, out], trained, tmp_path)


def test_data_mine(trained: tuple[Path, Path], tmp_path: Path) -> None:
    given = pairs(tmp_path / "pairs.jsonl")
    mine = partial_command("data", "mine", given)
    killed_while_it_replaces("data mine", mine, trained, tmp_path, off=False)


def partial_command(verb: str, what: str, given: Path) -> Callable[[Path, Path], list[object]]:
    return lambda source, out: [verb, what, source, given, out]


def test_context_add(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """The encoder opens whenever the verb is killed, with the old context or the new one."""
    folder = tmp_path / "out" / "encoder"

    def command(instruction: str) -> list[object]:
        return ["context", "add", folder, "task", "--demos", tmp_path / "demos.jsonl", "--instruction", instruction]

    def renew() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "old", folder)

    def state() -> str:
        return {"old: ": "the old one", "new: ": "the new one"}[instruction_of(folder)]

    rows = [{"query": text[:15], "response": text} for text in SENTENCES]
    (tmp_path / "demos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(trained[0], folder)
    run(command("old: "), place=tmp_path)
    shutil.copytree(folder, tmp_path / "old")
    asked = [*command("new: "), "--overwrite"]
    times = measured(asked, folder, place=tmp_path)
    new = content(folder)
    renew()
    found = loop(
        "context add --overwrite", asked, folder, state, place=tmp_path, kills=KILLS, seed=3, times=times, again=renew
    )
    assert found.kills == KILLS
    run(asked, place=tmp_path)
    assert content(folder) == new and not partial(tmp_path)
    assert [path.name for path in (folder / "contexts").iterdir()] == ["task"], "leftovers are gone"


def instruction_of(folder: Path) -> str:
    return Encoder.from_pretrained(folder).contexts["task"].context.instruction


def test_domain(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """What was finished when it was killed is the same file in the end; the rest is what an undisturbed run writes."""
    docs, given = write_domain(tmp_path)
    model = model_folder("llama")

    def command(output: Path) -> list[object]:
        return ["domain", docs, "--pairs", given, "-o", output, "--model", model, "--steps", 8, *TINY, "--no-export"]

    times = measured(command(tmp_path / "undisturbed"), tmp_path / "undisturbed", place=tmp_path)
    expected = outcome(tmp_path / "undisturbed")
    kills, runs = 0, 0
    while kills < KILLS:
        output = tmp_path / "out" / str(runs)
        finished: dict[str, str] = {}

        def state(output: Path = output, finished: dict[str, str] = finished) -> str:
            now = done_steps(output)
            lost = [name for name, sha256 in finished.items() if now.get(name) != sha256]
            assert not lost, lost
            finished.update(now)
            return f"{len(now)} finished files"

        found = loop(
            f"domain {runs}",
            command(output),
            tmp_path / "out",
            state,
            place=tmp_path,
            kills=min(6, KILLS - kills),
            seed=10 + runs,
            times=times,
            until=lambda output=output: (output / "report.json").is_file(),
        )
        kills, runs = kills + found.kills, runs + 1
        run(command(output), place=tmp_path)
        assert outcome(output) == expected
        assert not partial(tmp_path)
        state()
    assert kills == KILLS


def write_domain(place: Path) -> tuple[Path, Path]:
    def words(i: int) -> str:
        return (
            f"Number {i} comes first. {SENTENCES[i % 5]} Then {i * 7} follows, and nothing else is known of case {i}."
        )

    (place / "docs").mkdir()
    for i in range(40):
        (place / "docs" / f"{i}.md").write_text(f"# Case {i}\n\n{words(i)}\n")
    rows = [{"question": f"What is known of case {i}?", "answer": words(i)} for i in range(40)]
    (place / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place / "docs", place / "given.jsonl"


def done_steps(output: Path) -> dict[str, str]:
    """Files of the finished steps: the data, results, separations, and trained stages."""
    found = content(output) if output.exists() else {}
    places = ("data/", "results/", "separations/", "model/learn/", "model/represent/")
    return {
        name: sha256
        for name, sha256 in found.items()
        if name.startswith(places) and not any(part.startswith(".") for part in Path(name).parts)
    }


def outcome(output: Path) -> dict[str, object]:
    """What a domain run gives, without times: data, weights, and all scores."""
    found: dict[str, object] = {
        name: sha256
        for name, sha256 in done_steps(output).items()
        if name.startswith("data/") or name.endswith((".safetensors", ".examples.json"))
    }
    report = json.loads((output / "report.json").read_text())
    found["report"] = [{key: value for key, value in step.items() if "seconds" not in key} for step in report["steps"]]
    return found
