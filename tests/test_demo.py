"""The demonstration: its table and picture, and (slow) all of it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from embrew import demo
from embrew.demo import FEWEST, chosen_share, fewer_steps, minutes, run
from embrew.harvest import DEV_PACKAGES, TEST_PACKAGES, harvest, installed_packages
from embrew.recipe import Recipe

ROWS = [
    {"step": "nano, mean", "seconds": None, "ndcg_at_10": 0.0585, "recall_at_10": 0.09},
    {"step": "LLM2Comp: compress", "seconds": 61.4, "ndcg_at_10": 0.2, "recall_at_10": 0.31},
]


def test_table_and_picture(tmp_path: Path) -> None:
    demo._show(Console(quiet=True), tmp_path, ROWS, "Test split: 5 queries + 9 documents")
    page = (tmp_path / "table.md").read_text().splitlines()
    assert page[0] == "Test split: 5 queries + 9 documents."
    assert page[4:] == [
        "| nano, mean | 0.059 | 0.090 | – |",
        "| LLM2Comp: compress | 0.200 | 0.310 | 61 s |",
    ]
    assert (tmp_path / "scores.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def seconds_of_a_step(recipe: Recipe, whole: float, share: float = 1.0) -> float:
    """On a machine where the demonstration with this share of the steps takes `whole` minutes."""
    return whole / minutes(recipe, 1.0, share)


def test_steps_fit_five_minutes(tmp_path: Path) -> None:
    recipe = Recipe.load("llm2comp/nano")
    assert chosen_share(recipe, tmp_path / "idle", seconds_of_a_step(recipe, 5.9)) == 1.0
    step = seconds_of_a_step(recipe, 7.0)
    share = chosen_share(recipe, tmp_path / "busy", step)
    assert FEWEST < share < 1 and 4.9 < minutes(recipe, step, share) <= 5.0
    fewer = Recipe.load("llm2comp/nano", fewer_steps(recipe, share))
    steps = [stage.training["max_steps"] for stage in fewer.stages]
    assert steps == [round(share * n) for n in (60, 12, 90)] and fewer.stages[2].training["warmup_steps"] < 9
    assert fewer_steps(recipe, 1.0) == []


def test_a_resumed_demo_keeps_its_steps(tmp_path: Path) -> None:
    recipe = Recipe.load("llm2comp/nano")
    idle, slow = seconds_of_a_step(recipe, 3.0), seconds_of_a_step(recipe, 340.0)
    assert chosen_share(recipe, tmp_path / "one", slow, FEWEST) == FEWEST
    assert chosen_share(recipe, tmp_path / "one", idle) == chosen_share(recipe, tmp_path / "one", slow) == FEWEST
    with pytest.raises(ValueError, match="begun with 25% of the steps, and 100% are asked for; .* add --fresh"):
        chosen_share(recipe, tmp_path / "one", idle, 1.0)


def test_where_five_minutes_are_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and begins with the fewest steps."""

    class Begun(Exception):
        """The data are collected."""

    def begun(data: Path) -> str:
        raise Begun

    monkeypatch.setattr(demo, "measured_step", lambda: 14.0)
    monkeypatch.setattr(demo, "_collect", begun)
    with pytest.raises(Begun):
        run(tmp_path / "demo")
    shown = " ".join(capsys.readouterr().out.split())
    assert "about 184 min on this machine, with 25% of the steps of training" in shown
    assert "five minutes are not enough at its current load: the demonstration trains its fewest steps" in shown
    assert json.loads((tmp_path / "demo" / "steps.json").read_text())["share"] == 0.25


@pytest.mark.slow
def test_a_busy_machine_ends_with_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m embrew.demo`, where a step is measured to take long; on few packages, in small batches."""
    monkeypatch.setattr(demo, "measured_step", lambda: 14.0)
    monkeypatch.setattr(demo, "set_threads", lambda: None)
    monkeypatch.setattr(demo, "DOCUMENTS", {"test": 20, "dev": 20, "train": 60})
    names = {*TEST_PACKAGES, *DEV_PACKAGES, "asyncio", "email", "logging", "numpy", "unittest"}
    packages = [package for package in installed_packages() if package.name in names]
    assert len(packages) == len(names)
    monkeypatch.setattr(demo, "harvest", partial(harvest, packages=packages))
    small = ["stages.compress.training.per_device_train_batch_size=2"]
    small += [f"stages.{stage}.batch.size=8" for stage in ("unsupervised", "supervised")]
    monkeypatch.setattr("sys.argv", ["demo", "--output", str(tmp_path / "demo"), *small])
    demo.main()
    table = (tmp_path / "demo" / "table.md").read_text()
    for name, steps in {"compress": "15 of 60", "unsupervised": "3 of 12", "supervised": "22 of 90"}.items():
        assert f"LLM2Comp: {name} ({steps} steps)" in table
    for name in ("scores.png", "export/modules.json", "index/manifest.json"):
        assert (tmp_path / "demo" / name).is_file(), name


@pytest.mark.slow
def test_the_tuned_model_beats_the_untrained_one(tmp_path: Path) -> None:
    """`make demo` as it is, from harvest to search, on packages that it has never seen."""
    rows = run(tmp_path / "demo", share=1.0)
    steps = {"compress": 60, "unsupervised": 12, "supervised": 90}
    assert [row["step"] for row in rows[2:]] == [f"LLM2Comp: {name} ({n} of {n} steps)" for name, n in steps.items()]
    untrained, tuned = rows[:2], rows[-1]
    for score in ("ndcg_at_10", "recall_at_10"):
        assert all(tuned[score] > row[score] for row in untrained), score
    for name in ("table.md", "scores.png", "export/modules.json", "index/manifest.json"):
        assert (tmp_path / "demo" / name).is_file(), name
