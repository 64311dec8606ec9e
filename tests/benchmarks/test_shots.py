"""Demonstrations of the evidence's tasks reach the texts that are asked for with their instruction, and no others."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew import Encoder
from embrew.evaluation.suites import Suite
from embrew.evaluation.task import Task
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling


@pytest.fixture
def shots_of(monkeypatch) -> Any:
    """The module, with three demonstrations of each folder: `FOLDER q0` and `FOLDER p0` and so on."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    module = importlib.import_module("shots")
    monkeypatch.setattr(
        module, "candidates", lambda name: tuple(Demonstration(f"{name} q{i}", f"{name} p{i}") for i in range(3))
    )
    return module


def suite_of(*tasks: tuple[str, str, str | None]) -> Suite:
    """Tasks by name, folder and instruction."""
    made = []
    for name, folder, asked in tasks:
        settings = {} if asked is None else {"instruction": asked}
        made.append(Task(name, "sts", split="test", path=Path("/data", folder), files=(), settings=settings))
    return Suite("mine", tuple(made), {})


def pairs(several: Sequence[Demonstration]) -> list[str]:
    return [f"{one.query} {one.passage}" for one in several]


def test_conditions(shots_of):
    """Right, and with exchanged passages; a task without instruction has none."""
    suite = suite_of(("one", "a", "Do it"), ("plain", "c", None), ("two", "a", "Do that"), ("three", "b", "Do it"))
    right = {name: pairs(of) for name, of in shots_of.shown_to(suite, 2).items()}
    a, b = ["a q0 a p0", "a q1 a p1"], ["b q0 b p0", "b q1 b p1"]
    assert right == {"one": a, "two": a, "three": b}
    shuffled = {name: pairs(of) for name, of in shots_of.shown_to(suite, 3, "shuffled").items()}
    assert shuffled["one"] == ["a q0 a p2", "a q1 a p0", "a q2 a p1"]
    with pytest.raises(SystemExit, match="choose from right, shuffled"):
        shots_of.shown_to(suite, 2, "wrong")
    with pytest.raises(SystemExit, match="needs 2 or more"):
        shots_of.shown_to(suite, 1, "shuffled")


def test_tasks_of_one_instruction_have_their_own(shots_of, monkeypatch):
    """Each task is judged alone, with its own demonstrations, also where another has the same instruction."""
    suite = suite_of(("one", "a", "Do it"), ("two", "b", "Do it"))
    settings = {"pooling": Pooling("last"), "attention": "causal", "demonstrations": Demonstrations()}
    encoder = Encoder.from_pretrained("nano", template="{instruction}{text}{eos}", **settings)
    seen = []

    def judge(asked: Any, part: Suite) -> list[str]:
        (task,) = part.tasks
        vectors = asked.encode(["What is snow?"], prompt=task.settings["instruction"])
        plain = [Demonstration(f"{Path(task.path).name} q{i}", f"{Path(task.path).name} p{i}") for i in range(2)]
        encoder.add_context("same", Context("Do it: ", tuple(plain)))
        seen.append(bool(np.array_equal(vectors, encoder.encode(["What is snow?"], prompt_name="same"))))
        return [task.name]

    assert shots_of.judge_shown(encoder, "{instruction}: ", suite, 2, "right", judge) == ["one", "two"]
    assert seen == [True, True]
    shots_of.judge_shown(encoder, "{instruction}: ", suite, 0, "right", judge)
    assert seen[2:] == [False, False]


def test_no_demonstration_is_what_a_test_asks(monkeypatch, tmp_path):
    """Training rows that stand in the test split too, in whatever case and spaces, are left out."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    shots_module = importlib.import_module("shots")
    folder = tmp_path / "STSB"
    folder.mkdir()
    rows = {
        "train": [(f"train {i}", f"other {i}") for i in range(6)] + [("A  man sings.", "x"), ("y", "a dog runs.")],
        "test": [("A man sings.", "She hums."), ("The dog", "A dog runs.")],
    }
    for split, pairs_of in rows.items():
        with gzip.open(folder / f"{split}.jsonl.gz", "wt") as file:
            for one, other in pairs_of:
                file.write(json.dumps({"sentence1": one, "sentence2": other, "score": 5.0}) + "\n")
    monkeypatch.setenv("EMBREW_DATA", str(tmp_path))
    shots_module.candidates.cache_clear()
    found = shots_module.candidates("STSB")
    shots_module.candidates.cache_clear()
    assert sorted(found) == sorted(Demonstration(*pair) for pair in rows["train"][:6])
