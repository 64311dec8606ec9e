"""Learning curves read off logs: sums by hand, the front against its definition, the verb from end to end."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from embrew.analysis.efficiency import Curve, Evaluation, pareto, read_curve
from embrew.analysis.plots import by_stage
from embrew.cli import app


def points(*scores: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"step": step, "scores": {"dev": score, "STSB": score - 0.1}} for step, score in scores]


@pytest.fixture
def runs(tmp_path) -> Path:
    """`two`: 5 steps of 16 rows without a curve, then 4 steps of 32 of 64 rows. `one`: 8 steps of 32 of 256 rows."""
    logs = {
        "two": {
            "scores": {"base": {"dev": 0.3, "STSB": 0.2}, "first": {"dev": 0.4, "STSB": 0.3}},
            "curves": {"second": points((1, 0.5), (2, 0.7), (4, 0.6))},
            "samples": {
                "first": {"a_step": 16, "an_epoch": 160, "steps": 5},
                "second": {"a_step": 32, "an_epoch": 64, "steps": 4},
            },
        },
        "one": {
            "scores": {"base": {"dev": 0.3, "STSB": 0.2}},
            "curves": {"only": points((1, 0.35), (2, 0.45), (4, 0.55), (8, 0.65))},
            "samples": {"only": {"a_step": 32, "an_epoch": 256, "steps": 8}},
        },
    }
    for name, log in logs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"format": 2, **log}))
    return tmp_path


def sums(curve: Curve) -> list[tuple[Any, ...]]:
    return [(m.stage, m.step, m.samples, m.epochs, m.scores["dev"]) for m in curve.evaluations]


def test_samples_by_hand(runs):
    assert sums(read_curve(runs / "two")) == [
        ("first", 0, 0, 0.0, 0.3),
        ("first", 5, 80, 0.5, 0.4),
        ("second", 1, 80 + 32, 0.5, 0.5),
        ("second", 2, 80 + 64, 1.0, 0.7),
        ("second", 4, 80 + 128, 2.0, 0.6),
    ]
    alone = sums(read_curve(runs / "two", stage="second"))
    assert alone[0] == ("second", 0, 0, 0.0, 0.4)  # it begins with what the first has left
    assert [row[2] for row in alone] == [0, 32, 64, 128]


def test_what_it_takes_to_pass(runs):
    two_stages, one_stage = read_curve(runs / "two"), read_curve(runs / "one")
    assert one_stage.best.score == 0.65
    passed = two_stages.passes(one_stage.best.score)
    assert passed is not None
    assert (passed.samples, passed.step) == (144, 2)
    assert one_stage.passes(two_stages.best.score) is None
    assert one_stage.passes(0.65) is None  # as good is not better


def test_the_front_is_what_no_moment_beats():
    generator = random.Random(0)
    for _ in range(50):
        curves = [
            Curve(
                name,
                tuple(
                    Evaluation("s", i, generator.randrange(9), 0.0, {"dev": generator.randrange(9)}) for i in range(6)
                ),
            )
            for name in "abc"
        ]
        every = [(c.name, m) for c in curves for m in c.evaluations]

        def beaten(evaluation: Evaluation, every: list[tuple[str, Evaluation]] = every) -> bool:
            return any(
                (o.samples <= evaluation.samples and o.scores["dev"] > evaluation.scores["dev"])
                or (o.samples < evaluation.samples and o.scores["dev"] >= evaluation.scores["dev"])
                for _, o in every
            )

        wanted = {(m.samples, m.scores["dev"]) for _, m in every if not beaten(m)}
        front = pareto(curves)
        assert {(m.samples, m.scores["dev"]) for _, m in front} == wanted
        assert len(front) == len(wanted)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["analyze", "efficiency", *map(str, arguments)], env={"COLUMNS": "160"})


def test_the_verb(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs)
    result = run("two", "--against", "one", "--output", tmp_path / "out", "--picture", "svg")
    assert result.exit_code == 0, result.output
    assert "samples to pass one" in result.output and "144" in result.output
    with (tmp_path / "out" / "efficiency.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    wanted = {"run": "two", "stage": "second", "step": "2", "samples": "144", "epochs": "1.0", "pareto": "True"}
    assert rows[3] == {**wanted, "dev": "0.7", "STSB": "0.6"}
    written = json.loads((tmp_path / "out" / "efficiency.json").read_text())
    assert written["models"][0]["passes"] == {"samples": 144, "stage": "second", "steps": 2, "epochs": 1.0}
    assert written["models"][0]["share"] == 144 / 256
    picture = (tmp_path / "out" / "efficiency.svg").read_text()
    assert "samples seen" in picture and "Pareto front" in picture and "alignment" not in picture
    assert run(runs / "one", "--against", runs / "two").output.count("never") == 1


def test_epochs_are_of_one_stage(runs):
    """No line goes back to an earlier epoch; a stage begins where the one before has ended."""
    stages = list(by_stage(read_curve(runs / "two")))
    assert [([evaluation.epochs for evaluation in stage], last) for stage, last in stages] == [
        ([0.0, 0.5], False),
        ([0.0, 0.5, 1.0, 2.0], True),
    ]
    assert stages[1][0][0].scores == stages[0][0][-1].scores


def test_alignment_and_uniformity_have_a_panel(runs, tmp_path):
    log = json.loads((runs / "one" / "run.json").read_text())
    for scores in [log["scores"]["base"], *(point["scores"] for point in log["curves"]["only"])]:
        scores |= {"alignment": 0.5, "uniformity": -2.0}
    (runs / "one" / "run.json").write_text(json.dumps(log))
    assert run(runs / "one", "--output", tmp_path, "--picture", "svg").exit_code == 0
    assert "alignment (less is closer positives)" in (tmp_path / "efficiency.svg").read_text()


def test_what_is_refused(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no run\.json"):
        read_curve(tmp_path / "none")
    with pytest.raises(ValueError, match="has no stage 'third'; it has first, second"):
        read_curve(runs / "two", stage="third")
    with pytest.raises(ValueError, match="was not evaluated during training; train with evaluation.at=log"):
        read_curve(runs / "two", stage="first")
    result = run(runs / "two", runs / "two")
    assert result.exit_code != 0
