"""`search --build`, `--update` and `encode --update` killed at random moments: the old one or the new one is there."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embrew.encode import read_vectors
from embrew.encode.layout import scratch_of
from embrew.modeling.encoder import Encoder
from embrew.search import SearchIndex
from tests.conftest import SENTENCES
from tests.killing import Found, Running, content, loop, measured, partial, run

KILLS = 16
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved encoder, which commands open in a second or two."""
    encoder = Encoder.from_pretrained(model_folder("llama"))
    encoder.max_length.update(query=64, document=64)
    folder = tmp_path_factory.mktemp("model") / "encoder"
    encoder.save_pretrained(folder, verify="fast")
    return folder


def corpora(place: Path) -> tuple[Path, Path]:
    """Two versions: in the second, rows before the others, changed ones, dropped ones and more."""
    old = [(f"d{i}", f"{SENTENCES[i % len(SENTENCES)]} Part {i}.") for i in range(2000)]
    new = [
        ("first", "A new row."),
        *(row for i, row in enumerate(old) if i % 50),
        *((f"m{i}", f"More {i}") for i in range(400)),
    ]
    new = [(name, f"{text} Changed." if name.endswith("77") else text) for name, text in new]
    paths = []
    for number, rows in enumerate((old, new)):
        paths.append(place / f"corpus-{number}.jsonl")
        paths[-1].write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in rows))
    return paths[0], paths[1]


def killed(
    name: str, make: Callable[[Path, Path], list[object]], command: Callable[[Path, Path], list[object]],
    opens: Callable[[Path], object], model: Path, place: Path,
) -> Found:  # fmt: skip
    """Kill a command that replaces a folder; after each kill the folder opens, and is the old one or the new one."""
    older, newer = corpora(place)
    (place / "undisturbed").mkdir()
    (place / "out").mkdir()
    run(make(older, place / "old"), place=place)
    shutil.copytree(place / "old", place / "undisturbed" / "new")
    whole, writes_from = measured(command(newer, place / "undisturbed" / "new"), place / "undisturbed", place=place)
    old, new = content(place / "old"), content(place / "undisturbed" / "new")
    assert old != new
    target = place / "out" / "target"
    shutil.copytree(place / "old", target)

    def state() -> str:
        opens(target)
        return {json.dumps(old): "the old one", json.dumps(new): "the new one"}[json.dumps(content(target))]

    def again() -> None:
        shutil.rmtree(target)
        shutil.rmtree(scratch_of(target), ignore_errors=True)
        shutil.copytree(place / "old", target)

    arguments = command(newer, target)
    found = loop(
        name, arguments, place / "out", state, place=place, kills=KILLS, seed=0, whole=whole, writes_from=writes_from,
        again=again,
    )  # fmt: skip
    assert found.kills == KILLS and found.writing >= 3
    run(arguments, place=place)
    assert content(target) == new, "to the byte that of a run that nothing stopped"
    assert sorted(path.name for path in (place / "out").iterdir()) == ["target"], "leftovers are gone"
    assert not partial(place)
    return found


def test_search_build(model: Path, tmp_path: Path) -> None:
    def build(corpus: Path, folder: Path) -> list[object]:
        return ["search", model, "--build", corpus, "--index", folder, "--overwrite"]

    encoder = Encoder.from_pretrained(model)
    killed(
        "search --build --overwrite", build, build, lambda folder: SearchIndex.load(folder, encoder), model, tmp_path
    )


def test_search_update(model: Path, tmp_path: Path) -> None:
    def build(corpus: Path, folder: Path) -> list[object]:
        return ["search", model, "--build", corpus, "--index", folder]

    def update(corpus: Path, folder: Path) -> list[object]:
        return ["search", model, "--update", corpus, "--index", folder]

    encoder = Encoder.from_pretrained(model)
    killed("search --update", build, update, lambda folder: SearchIndex.load(folder, encoder), model, tmp_path)


def test_encode_update(model: Path, tmp_path: Path) -> None:
    """At random moments between its first file and its end; whatever a kill left, the next run resumes it."""
    older, newer = corpora(tmp_path)
    old_folder, undisturbed, target = (tmp_path / name / "target" for name in ("old", "undisturbed", "out"))

    def encode(corpus: Path, folder: Path, *more: str) -> list[object]:
        return ["encode", model, corpus, folder, "--shard-rows", 16, *more]

    run(encode(older, old_folder), place=tmp_path)
    shutil.copytree(old_folder, undisturbed)
    running = Running(encode(newer, undisturbed, "--update"), place=tmp_path)
    running.wait(scratch_of(undisturbed).exists)
    first = running.seconds
    running.wait(lambda: not scratch_of(undisturbed).exists())
    window = running.seconds - first
    running.wait()
    running.check()
    old, new = content(old_folder), content(undisturbed)
    assert old != new

    def renew() -> None:
        for folder in (target, scratch_of(target)):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(old_folder, target)

    renew()
    generator, found, began = random.Random(0), Found("encode --update", 0), time.monotonic()
    while found.kills < KILLS:
        assert found.finished < 4 * KILLS, "moments come too late"
        running = Running(encode(newer, target, "--update"), place=tmp_path)
        running.wait(scratch_of(target).exists) if not scratch_of(target).exists() else running.wait(
            lambda running=running: running.seconds > first
        )
        moment = running.seconds + generator.uniform(0, window)
        if not running.wait(lambda running=running, moment=moment: running.seconds > moment):
            running.check()
            found.finished += 1
            assert content(target) == new and not scratch_of(target).exists()
            renew()
            continue
        running.kill()
        found.kills += 1
        read_vectors(target).load()
        what = {json.dumps(old): "the old one", json.dumps(new): "the new one"}[json.dumps(content(target))]
        if what == "the old one":
            parts = [len(list((scratch_of(target) / name).glob("part-*"))) for name in ("fresh", "new")]
            what += ", texts being encoded" if not parts[1] else ", the new one being put together"
            found.writing += sum(parts) > 0
        found.states[what] = found.states.get(what, 0) + 1
        if what == "the new one":
            renew()
    found.seconds = time.monotonic() - began
    sys.stdout.write(f"\n{found}\n")
    assert found.writing >= 3
    run(encode(newer, target, "--update"), place=tmp_path)
    assert content(target) == new, "to the byte that of a run that nothing stopped"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["target"], "leftovers are gone"
    assert not partial(tmp_path)


def test_no_update_encodes_a_shard_twice(model: Path, tmp_path: Path) -> None:
    """Every run that is killed gets further: shards of new texts that were finished stay as they are."""
    older, newer = corpora(tmp_path)
    target, fresh = tmp_path / "out" / "target", tmp_path / "out" / ".target.update" / "fresh"
    run(["encode", model, older, target, "--shard-rows", 32], place=tmp_path)
    finished: dict[str, int] = {}
    kills = 0
    while kills < 20:
        running = Running(["encode", model, newer, target, "--shard-rows", 32, "--update"], place=tmp_path)

        def further(known: int = len(finished)) -> bool:
            return len(list(fresh.glob("part-*"))) > known + 2

        if not running.wait(further):
            running.check()
            break
        running.kill()
        kills += 1
        parts = {path.name: path.stat().st_mtime_ns for path in fresh.glob("part-*")}
        listed = {entry["file"] for entry in json.loads((fresh / "__embrew__" / "vectors.json").read_text())["shards"]}
        now = {name: time for name, time in parts.items() if name in listed}
        assert {name: now[name] for name in finished} == finished
        finished = now
    assert kills >= 3
    assert len(read_vectors(target)) == sum(1 for _ in newer.open())
