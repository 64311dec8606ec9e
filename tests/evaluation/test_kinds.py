"""A kind of task is one `TaskKind`: what is registered is found, evaluated, shown and chosen by everything else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.data.columns import accepted_layouts
from embrew.evaluation import evaluate, find_task, read_suite, table
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.mteb_tasks import mteb_kind
from embrew.evaluation.task import Task, TaskColumns, TaskKind
from embrew.evaluation.uncertainty import interval
from embrew.report.comparison import models_of
from tests.rows import write_rows


def score(encoder: Any, rows: TaskColumns, *, longer: float = 1.0, **options: Any) -> dict[str, Any]:
    graded = [int(label) for label in rows["label"]]
    norms = np.linalg.norm(encoder.encode(rows["text"], **options), axis=1) * longer
    right = [float((norm > 1.5) == bool(label)) for norm, label in zip(norms, graded, strict=True)]
    examples = {"predicted": norms.tolist(), "gold": graded}
    return {"main_score": float(np.mean(right)), "examples": examples, "counts": {"lengths": len(graded)}}


def agreement(examples: Any, scores: Any, times: np.ndarray) -> np.ndarray:
    right = (examples["predicted"] > 1.5) == examples["gold"].astype(bool)
    return right @ times / len(right)


TOY = TaskKind(
    name="length",
    metric="share right",
    score=score,
    rows="labelled",
    about=("text",),
    mteb_types=("Length",),
    statistic=agreement,
)


@pytest.fixture
def toy(monkeypatch, tmp_path) -> Path:
    """A folder of the toy kind; a bag of n different words is √n long, so that two words are short, three long."""
    monkeypatch.setitem(KINDS, "length", TOY)
    rows = [("a b c", 1), ("a b", 0), ("d e f", 1), ("d e f g", 0)]
    folder = tmp_path / "toy"
    for split in ("train", "dev", "test"):
        lines = ({"text": f"{split} {text}"[-len(text) :], "label": label, "length": 0} for text, label in rows)
        write_rows(folder / f"{split}.jsonl", lines)
    return folder


def test_a_toy_kind_is_evaluated_and_shown(toy, bag_of_words, tmp_path):
    task = find_task(toy, kind="length", longer=1.0)
    assert (task.kind, task.split) == ("length", "test")
    (result,) = evaluate(bag_of_words, [task], output_dir=tmp_path / "out")
    assert (result.kind, result.main_score, result.counts) == ("length", 0.75, {"lengths": 4})
    entry = json.loads((tmp_path / "out" / "toy.test.json").read_text())["scores"]["test"][0]
    assert entry["main_score"] == 0.75
    assert json.loads((tmp_path / "out" / "toy.test.run.json").read_text())["kind"] == "length"
    assert evaluate(bag_of_words, [task], output_dir=tmp_path / "out") == [result], "read back"
    assert table([result])[1][0][:5] == ["toy", "test", "share right", "75.00", "4 lengths"]
    ((read,),) = models_of([f"a={tmp_path / 'out'}"])[0].seeds
    low, high = interval(read) or (1.0, 0.0)
    assert 0 <= low < 0.75 < high <= 1
    with pytest.raises(
        ValueError, match="shorter is not a setting of length; choose from longer, columns, instruction"
    ):
        find_task(toy, kind="length", shorter=1)


def test_a_toy_kind_is_recognised_by_its_columns(toy, monkeypatch, tmp_path):
    assert find_task(toy).kind == "classification", "which stands before it in the registry and matches too"
    first = {"length": TOY, **KINDS}
    for name in list(KINDS):
        monkeypatch.delitem(KINDS, name)
    KINDS.update(first)
    assert find_task(toy).kind == "length"
    assert find_task(toy / "test.jsonl").kind == "length"
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"known are length \(label, text\); sts"):
        find_task(tmp_path / "x.jsonl")
    with pytest.raises(ValueError, match="kind='lengths'; choose from length, sts"):
        find_task(toy, kind="lengths")


def test_a_toy_kind_in_suites_and_on_the_command_line(toy, monkeypatch, bag_of_words):
    (toy.parent / "s.yaml").write_text("tasks: [{data: toy, kind: length, longer: 2.0}]\n")
    (task,) = read_suite(toy.parent / "s.yaml", data=toy.parent).tasks
    assert isinstance(task, Task) and (task.kind, task.settings) == ("length", {"longer": 2.0})
    monkeypatch.setattr("embrew.opening.open_model", lambda *args, **options: bag_of_words)
    done = CliRunner().invoke(app, ["evaluate", "nano", "-d", str(toy), "--kind", "length"])
    assert done.exit_code == 0, done.output
    assert "share right" in done.output and "75.00" in done.output
    done = CliRunner().invoke(app, ["evaluate", "nano", "-d", str(toy), "--kind", "size"])
    assert done.exit_code == 1 and "kind='size'; choose from sts" in done.output


def test_every_kind_says_what_it_reads():
    assert len(KINDS) == 9
    types = [name for kind in KINDS.values() for name in kind.mteb_types]
    assert len(set(types)) == len(types)
    for name, kind in KINDS.items():
        assert name == kind.name and kind.metric and kind.settings[-2:] == ["instruction", "context"]
        assert kind.corpus or (kind.rows and kind.about), name
        assert set(kind.grid) <= set(kind.settings), name
        if kind.rows:  # its text columns are columns of its layout
            layout = accepted_layouts(kind.rows)
            assert all(column in layout for column in (*kind.about, *kind.other, *kind.documents)), name


def test_types_of_mteb_follow_from_the_registry(toy):
    class Found:
        class metadata:
            name, type = "Lengths", "Length"

    assert mteb_kind(Found) == "length"
    Found.metadata.type = "Width"
    with pytest.raises(ValueError, match="Lengths has the type Width; supported are STS, Retrieval, .*, Length"):
        mteb_kind(Found)


def test_kinds_and_tables_open_no_weights():
    """The registry is imported by commands that only read results."""
    code = "import embrew.evaluation, sys; assert not {'torch', 'sklearn', 'scipy', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
