"""Scores in a report: rows and means by hand, order, groups of settings, and how large a report becomes."""

from __future__ import annotations

import html
import json
import statistics
import time

import pytest

from embrew.evaluation.results import Result
from embrew.plot_style import METHODS
from embrew.report import Model, compare_models, verdict
from embrew.report.page import write_report
from embrew.report.scores import mean_rows, overall, section, settings_as_text
from embrew.report.section import Subject, model_colours
from tests.report.subjects import subject


def result(task: str, main: float, kind: str = "sts") -> Result:
    return Result(task, "test", kind, main, {}, 1.0, {"pairs": 3}, {})


def test_means_and_differences_by_hand():
    base = [[result("a", 0.2), result("b", 0.4), result("c", 0.9, "clustering")]]
    seeds = [[result("a", x), result("b", 0.1), result("c", 0.8, "clustering")] for x in (0.3, 0.5)]
    compared = compare_models([Model("base", base), Model("other", seeds)])
    rows = {row["name"]: row["cells"] for row in section(Subject(compared)).values["groups"]["Tasks"]}
    assert list(rows) == ["b", "c", "a"]  # the largest loss first: -0.3, -0.1, +0.2
    assert rows["a"][1]["score"] == pytest.approx(0.4) and rows["a"][1]["spread"] == pytest.approx(0.02**0.5)
    assert rows["a"][1]["difference"] == pytest.approx(0.2) and rows["a"][1]["test"] is None
    means = {row["name"]: [cell["score"] for cell in row["cells"]] for row in mean_rows(compared)}
    assert means["Mean over tasks"] == pytest.approx([0.5, 1.3 / 3])
    assert means["Mean over kinds"] == pytest.approx([(0.3 + 0.9) / 2, (0.25 + 0.8) / 2])
    assert means["sts"] == pytest.approx([0.3, 0.25]) and "clustering" not in means


def test_tasks_with_a_significant_loss_are_first():
    reported = subject(["base", "better", "best"], ["T1", "T2", "T3", "lost"], queries=200)
    _, (lost,), others = section(reported).values["groups"].values()
    assert lost["name"] == "lost" and [cell["outcome"] for cell in lost["cells"]] == [None, "worse", "worse"]
    assert len(others) == 3 and [cell["outcome"] for cell in others[0]["cells"]] == [None, "better", "better"]


def test_page_and_json_hold_the_same_numbers(tmp_path):
    reported = subject(["base", "other"], ["T1", "T2", "T3"], seeds=2)
    write_report(reported, tmp_path / "r.html")
    page = html.unescape((tmp_path / "r.html").read_text())
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["verdict"][:2] == verdict(reported.comparison)
    assert all(sentence in page for sentence in document["verdict"])
    by_hand = {
        task: statistics.fmean(
            statistics.fmean(seed[i].examples["score"]) for seed in reported.comparison.models[1].seeds
        )
        for i, task in enumerate(("T1", "T2", "T3"))
    }
    for entry in document["scores"]["tasks"]:
        score = by_hand[entry["task"].split()[0]]
        assert entry["scores"][1] == pytest.approx(score) and f"{100 * score:.2f}" in page
    mean = statistics.fmean(by_hand.values())
    assert overall(reported.comparison)["cells"][1]["score"] == pytest.approx(mean)
    assert f"{100 * mean:.2f}" in document["verdict"][0]


def test_settings_are_texts_and_not_repeated():
    texts = settings_as_text(
        {
            "dtype": ("float32", "bfloat16"),
            "model.dtype": ("float32", "bfloat16"),
            "model.normalize": (True, None),
            "model_hash": ("a" * 64, "b" * 64),
            "prompts.query": ("", "find: "),
        }
    )
    assert texts == {
        "dtype": ("float32", "bfloat16"),
        "model.normalize": ("yes", "not set"),
        "model_hash": ("a" * 12 + "…", "b" * 12 + "…"),
        "prompts.query": ("empty", "find: "),
    }


def test_models_have_colours_of_their_own():
    names = ["ESE", "ESE small", "LLM2Comp 1", "LLM2Comp 2", *(f"model {i}" for i in range(8))]
    chosen = model_colours(names)
    assert chosen[0] == METHODS["ese"] and chosen[2] == METHODS["llm2comp"]
    assert len(set(chosen)) == len(names) == 12


@pytest.mark.slow
def test_large_reports_stay_small(tmp_path):
    names, tasks = [f"model {i}" for i in range(10)], [f"task {i}" for i in range(60)]
    reported = subject(names, tasks, queries=1000, documents=100_000)
    start = time.process_time()
    write_report(reported, tmp_path / "large.html")
    seconds = time.process_time() - start
    size = (tmp_path / "large.html").stat().st_size
    assert size < 5e6 and seconds < 60, (size, seconds)
