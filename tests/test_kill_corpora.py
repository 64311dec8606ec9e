"""`search --build`, `--update` and `encode --update` killed at random moments: the old one or the new one is there."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial as partial_of
from pathlib import Path

import pytest

from embrew.corpus import read_vectors
from embrew.encoder import Encoder
from embrew.search import SearchIndex
from tests.conftest import SENTENCES
from tests.killing import Found, Running, content, partial, run

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


@dataclass
class Killed:
    """A command that replaces a folder, and how to tell that it is at work.

    Attributes:
        name: for the report.
        make: the command that makes the folder of the older version; of `corpus` and `folder`.
        replace: the command that is killed; likewise.
        opens: opens the folder, and raises unless it is whole.
        beside: names of files and folders beside the folder while the command is at work.
    """

    name: str
    make: Callable[[Path, Path], list[object]]
    replace: Callable[[Path, Path], list[object]]
    opens: Callable[[Path], object]
    beside: Callable[[Path], set[str]]

    def loop(self, place: Path) -> None:
        """Kill it at random moments, every other one while it is at work: the old folder or the new one is there."""
        older, newer = corpora(place)
        old_folder, undisturbed, target = (place / name / "target" for name in ("old", "undisturbed", "out"))
        for folder in (old_folder, undisturbed, target):
            folder.parent.mkdir()
        run(self.make(older, old_folder), place=place)
        shutil.copytree(old_folder, undisturbed)
        running = Running(self.replace(newer, undisturbed), place=place)
        running.wait(lambda: bool(self.beside(undisturbed)))
        first = running.seconds
        running.wait(lambda: not self.beside(undisturbed))
        window = running.seconds - first
        running.wait()
        running.check()
        old, new = content(old_folder), content(undisturbed)
        assert old != new

        def renew() -> None:
            shutil.rmtree(target.parent)
            target.parent.mkdir()
            shutil.copytree(old_folder, target)

        renew()
        generator, found, began = random.Random(0), Found(self.name, 0), time.monotonic()
        while found.kills < KILLS:
            assert found.finished < 4 * KILLS, "moments come too late"
            left = self.beside(target)
            running = Running(self.replace(newer, target), place=place)
            moment = generator.uniform(0, first + window)
            if (found.kills + found.finished) % 2:
                running.wait(
                    lambda left=left, running=running: self.at_work(target, left) or running.seconds > 4 * first
                )
                moment = running.seconds + generator.uniform(0, window)
            if not running.wait(lambda running=running, moment=moment: running.seconds > moment):
                running.check()
                found.finished += 1
                assert content(target) == new and not self.beside(target)
                renew()
                continue
            running.kill()
            found.kills += 1
            found.writing += self.at_work(target, left)
            self.opens(target)
            what = {json.dumps(old): "the old one", json.dumps(new): "the new one"}[json.dumps(content(target))]
            found.states[what] = found.states.get(what, 0) + 1
            if what == "the new one":
                renew()
        found.seconds = time.monotonic() - began
        sys.stdout.write(f"\n{found}\n")
        sys.stdout.flush()
        assert found.writing >= 3
        run(self.replace(newer, target), place=place)
        assert content(target) == new, "to the byte that of a run that nothing stopped"
        assert [path.name for path in target.parent.iterdir()] == ["target"], "leftovers are gone"
        assert not partial(place)

    def at_work(self, target: Path, left: set[str]) -> bool:
        """Whether there is more beside the folder than a killed run left."""
        return bool(self.beside(target) - left)


def temporary(folder: Path) -> set[str]:
    """Temporary folders beside an index that is being saved."""
    return {path.name for path in folder.parent.iterdir() if path != folder}


def parts(folder: Path) -> set[str]:
    """Shards of an update that is being made."""
    hidden = [os.walk(path) for path in folder.parent.glob(".*")]  # which ignores folders that are removed meanwhile
    return {f"{place}/{name}" for walk in hidden for place, _, names in walk for name in names if "part-" in name}


def test_search_build(model: Path, tmp_path: Path) -> None:
    def build(corpus: Path, folder: Path) -> list[object]:
        return ["search", model, "--build", corpus, "--index", folder, "--overwrite"]

    encoder = Encoder.from_pretrained(model)
    opens = partial_of(SearchIndex.load, encoder=encoder)
    Killed("search --build --overwrite", build, build, opens, temporary).loop(tmp_path)


def test_encode_update(model: Path, tmp_path: Path) -> None:
    def encode(corpus: Path, folder: Path) -> list[object]:
        return ["encode", model, corpus, folder, "--shard-rows", 16]

    def update(corpus: Path, folder: Path) -> list[object]:
        return [*encode(corpus, folder), "--update"]

    Killed("encode --update", encode, update, lambda folder: read_vectors(folder).load(), parts).loop(tmp_path)
