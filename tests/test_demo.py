"""The demonstration: its table and picture, and (slow) all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embrew.demo.estimate import Estimate, costs
from embrew.demo.run import run
from embrew.demo.table import markdown, plot
from embrew.recipe import Recipe

ROWS = [
    {"step": "nano, mean", "seconds": None, "ndcg_at_10": 0.0585, "recall_at_10": 0.09},
    {"step": "LLM2Comp: compress", "seconds": 61.4, "ndcg_at_10": 0.2, "recall_at_10": 0.31},
]


def test_table() -> None:
    page = markdown(ROWS, "Test split: 5 queries + 9 documents").splitlines()
    assert page[0] == "Test split: 5 queries + 9 documents."
    assert page[4:] == [
        "| nano, mean | 0.059 | 0.090 | – |",
        "| LLM2Comp: compress | 0.200 | 0.310 | 61 s |",
    ]


def test_picture(tmp_path: Path) -> None:
    plot(ROWS, tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_remaining_minutes(tmp_path: Path) -> None:
    recipe = Recipe.load("llm2comp/nano")
    whole = costs(recipe, tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "model" / "compress").mkdir(parents=True)
    (tmp_path / "model" / "compress" / "embrew.json").write_text("{}")
    left = costs(recipe, tmp_path)
    assert left["data"] == 0 < whole["data"]
    assert whole["training"] - left["training"] == pytest.approx(60 * 2.4), "compress is finished"
    estimate = Estimate(0.6, {"one": 100.0, "two": 900.0})
    assert str(estimate) == "about 10 min"
    with estimate.part("one"):  # takes no time, so the machine is faster than measured
        pass
    assert 8.0 < estimate.minutes < 8.2
    with estimate.part("two"):
        pass
    assert str(estimate) == "less than a minute"


@pytest.mark.slow
def test_the_tuned_model_beats_the_untrained_one(tmp_path: Path) -> None:
    """`make demo` as it is, from harvest to search, on packages that it has never seen."""
    rows = run(tmp_path / "demo")
    assert [row["step"] for row in rows[2:]] == ["LLM2Comp: compress", "LLM2Comp: unsupervised", "LLM2Comp: supervised"]
    untrained, tuned = rows[:2], rows[-1]
    for score in ("ndcg_at_10", "recall_at_10"):
        assert all(tuned[score] > row[score] for row in untrained), score
    for name in ("table.md", "scores.png", "export/modules.json", "index/manifest.json"):
        assert (tmp_path / "demo" / name).is_file(), name


@pytest.mark.slow
def test_a_stopped_demo_goes_on(tmp_path: Path) -> None:
    """Two steps a stage; stopped after the first stage, then given again."""
    stages = [stage.name for stage in Recipe.load("llm2comp/nano").stages]
    short = [f"stages.{name}.training.max_steps=2" for name in stages]
    command = [sys.executable, "-m", "embrew.demo", "--output", str(tmp_path / "demo"), *short]
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    while process.poll() is None and not (tmp_path / "demo" / "model" / stages[0]).exists():
        time.sleep(0.5)
    process.kill()
    process.wait()
    done = subprocess.run(
        command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=True
    )
    assert f"{stages[0]}  already finished, skipped" in done.stdout
