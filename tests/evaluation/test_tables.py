"""Tables of several models, differences between two, and how sure a score is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.evaluation import Result, evaluate
from embrew.evaluation.kinds.sts import sample_spearman
from embrew.evaluation.report import write_result
from embrew.evaluation.tables import as_csv, as_markdown, difference, grid, read_folder, rows_of
from embrew.evaluation.uncertainty import compare, interval


def result(task="T", main=0.5, kind="retrieval", **examples) -> Result:
    return Result(task, "test", kind, main, {}, 1.0, {"queries": 3}, examples)


def save(folder, *results, **run):
    for one in results:
        about = {"task": one.task, "split": one.split, "kind": one.kind, "dataset_revision": "1", "settings": {}, **run}
        write_result(one, folder, about)
    return folder


def test_what_is_written_is_read_again(bag_of_words, sts_folder, retrieval_folder, tmp_path):
    written = evaluate(bag_of_words, [sts_folder, retrieval_folder], output_dir=tmp_path / "out")
    assert [one for one, _ in read_folder(tmp_path / "out")] == written
    assert written[1].examples == {"score": [1.0, 1.0, 0.0]}
    assert written[0].examples["gold"] == [5.0, 3.0, 0.0]


def test_intervals_hold_the_true_mean_as_often_as_they_say():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        scores = rng.uniform(size=60)
        low, high = interval(
            Result("T", "test", "retrieval", scores.mean(), {}, 1.0, {}, {"score": scores.tolist()}), samples=300
        )
        hits += low <= 0.5 <= high
    assert 0.89 <= hits / 200 <= 0.99


def test_an_interval_of_a_correlation_is_of_resampled_pairs():
    rng = np.random.default_rng(1)
    gold = rng.uniform(size=300)
    predicted = gold + rng.normal(size=300)
    sts = result(kind="sts", predicted=predicted.tolist(), gold=gold.tolist())
    low, high = interval(sts, samples=200)
    assert low < sample_spearman(predicted, gold) < high
    assert 0.1 < high - low < 0.3  # about 4 / sqrt(300)
    pairs = result(kind="pair_classification", predicted=predicted.tolist(), gold=(gold > 0.5).astype(int).tolist())
    low, high = interval(pairs, samples=100)
    assert 0.5 < low < high < 1
    assert interval(result()) is None


def test_a_paired_test_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(2)
    a = rng.uniform(size=200)
    b = a + rng.normal(0.02, 0.05, size=200)  # small next to the spread over queries, steady within a query
    ours, theirs = (result(main=float(x.mean()), score=x.tolist()) for x in (a, b))
    found = compare(ours, theirs)
    assert found.low < found.difference < found.high
    assert found.p_value < 0.01
    assert interval(ours)[1] > interval(theirs)[0]  # the intervals overlap
    same = compare(ours, ours)
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="are of different examples"):
        compare(ours, result(score=[1.0]))


def test_seeds_of_one_name_are_one_row(tmp_path):
    for seed, score in (("1", 0.4), ("2", 0.6)):
        save(tmp_path / seed, result("A", score), result("B", 0.2, kind="sts"))
    save(tmp_path / "other", result("A", 0.1), result("C", 0.9))
    rows = rows_of([f"ours={tmp_path / '1'}", f"ours={tmp_path / '2'}", str(tmp_path / "other")])
    header, cells = grid(rows)
    assert header == ["", "A test, 3 queries"], "what all have; means of other tasks are no comparison"
    assert cells == [["ours", "50.00 ± 14.14"], ["other", "10.00"]]
    assert grid(rows[:1], averages_only=True)[0] == ["", "mean over kinds", "mean over tasks"]
    assert grid(rows[:1], named={"both": ["A", "B"], "none": ["X"]})[0] == [
        "", "mean over kinds", "mean over tasks", "both", "A test, 3 queries", "B test, 3 queries"
    ]  # fmt: skip
    assert as_markdown(header, cells).splitlines()[2] == "| ours | 50.00 ± 14.14 |"
    assert as_csv(header, cells).splitlines()[0] == 'model,"A test, 3 queries"'
    with pytest.raises(ValueError, match="'x' hold different tasks"):
        rows_of([f"x={tmp_path / '1'}", f"x={tmp_path / 'other'}"])
    with pytest.raises(FileNotFoundError, match="holds no results; embrew evaluate --output"):
        rows_of([str(tmp_path)])
    save(tmp_path / "apart", result("Z"))
    with pytest.raises(ValueError, match="no task, split and size in common"):
        grid(rows_of([str(tmp_path / "1"), str(tmp_path / "apart")]))


def test_a_difference_names_settings_and_scores(tmp_path):
    scores = np.linspace(0, 1, 50)
    a = save(
        tmp_path / "a", result("T", 0.5, score=scores.tolist()), model={"pooling": "last", "base": "x"}, dtype="float32"
    )
    better = result("T", 0.6, score=(scores + 0.1).tolist())
    b = save(tmp_path / "b", better, result("U"), model={"pooling": "mean", "base": "x"}, dtype="float32")
    changed = difference(a, b)
    assert changed.settings == {"model.pooling": ("last", "mean")}
    assert changed.only == {"U (test)": "B"}
    ours, theirs, test = changed.scores["T test, 3 queries"]
    assert (ours, theirs) == (0.5, 0.6)
    assert test.p_value < 0.01
    c = save(tmp_path / "c", result("T", 0.5, score=[1.0]), dataset_revision="2")
    assert difference(a, c).scores["T test, 3 queries"][2] is None  # other data: no test
    assert "dataset_revision" in difference(a, c).settings


def test_the_verbs(tmp_path):
    one = save(tmp_path / "one", result("T", 0.5, score=[0.0, 1.0] * 20), dtype="float32")
    two = save(tmp_path / "two", result("T", 0.75, score=[0.5, 1.0] * 20), dtype="bfloat16")
    shown = CliRunner().invoke(app, ["table", str(one), f"two={two}", "--intervals", "-o", str(tmp_path / "t.md")])
    assert shown.exit_code == 0, shown.output
    assert "50.00 [" in shown.output
    assert (tmp_path / "t.md").read_text().startswith("|  | T test, 3 queries |")
    shown = CliRunner().invoke(app, ["diff", str(one), str(two)])
    assert shown.exit_code == 0, shown.output
    assert "bfloat16" in shown.output
    assert "+25.00" in shown.output
    refused = CliRunner().invoke(app, ["table", str(one), "-o", str(tmp_path / "t.txt")])
    assert refused.exit_code != 0
    assert json.loads((one / "T.test.examples.json").read_text()) == {"score": [0.0, 1.0] * 20}
