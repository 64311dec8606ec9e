"""Tables of several models, differences between two, and how sure a score is."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from typer.testing import CliRunner

from embrew.cli import app
from embrew.evaluation import Result, evaluate
from embrew.evaluation.results import mean_score, write_result
from embrew.evaluation.uncertainty import bootstrap, compare, holm, interval, paired_test
from embrew.report import compare_models, differing_settings, read_folder, verdict
from embrew.report.comparison import models_of
from embrew.report.tables import as_markdown, csv_text, grid


def result(task="T", main=0.5, kind="retrieval", **examples) -> Result:
    return Result(task, "test", kind, main, {}, 1.0, {"queries": 3}, examples)


def save(folder, *results, **run):
    for result in results:
        about = {
            "task": result.task,
            "split": result.split,
            "kind": result.kind,
            "dataset_revision": "1",
            "settings": {},
            **run,
        }
        write_result(result, folder, about)
    return folder


def test_what_is_written_is_read_again(bag_of_words, sts_folder, retrieval_folder, tmp_path):
    written = evaluate(bag_of_words, [sts_folder, retrieval_folder], output_dir=tmp_path / "out")
    assert list(read_folder(tmp_path / "out")) == written
    assert written[1].examples["score"] == [1.0, 1.0, 0.0]
    assert written[1].examples["rank"] == [1, 1, None]
    assert written[0].examples["gold"] == [5.0, 3.0, 0.0]


def test_intervals_of_classification_are_of_its_scores():
    """Its examples also hold gold and predicted classes, which are names: `score` is drawn."""
    scores = [1.0, 0.5, 0.0, 1.0] * 10
    named = result(main=0.625, kind="classification", score=scores, gold=["a", "b"] * 20, predicted=["a"] * 40)
    assert interval(named) == interval(result(main=0.625, score=scores))
    other = result(main=0.625, kind="classification", score=scores, gold=["b", "a"] * 20, predicted=["a"] * 40)
    with pytest.raises(ValueError, match="different examples"):
        compare(named, other)


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
    assert low < spearmanr(predicted, gold).statistic < high
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
    test = compare(ours, theirs)
    assert test.low < test.difference < test.high
    assert test.p_value < 0.01
    assert interval(ours)[1] > interval(theirs)[0]  # the intervals overlap
    same = compare(ours, ours)
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="are of different examples"):
        compare(ours, result(score=[1.0]))


def test_no_cell_of_a_csv_file_is_a_formula():
    inert = ["a=b", "-1.5", "-1.50 ± 0.20", "+2.00 [1.00, 3.00]"]
    formulas = ["=1+1", "+x", "-x", "@x", "\t=1", "-2+cmd|' /C calc'!A0"]
    lines = csv.reader(io.StringIO(csv_text([name, "-1"] for name in (*inert, *formulas)), newline=""))
    assert [line[0] for line in lines] == [*inert, *(f"'{name}" for name in formulas)]


def test_seeds_of_one_name_are_one_row(tmp_path):
    for seed, score in (("1", 0.4), ("2", 0.6)):
        save(tmp_path / seed, result("A", score), result("B", 0.2, kind="sts"))
    save(tmp_path / "other", result("A", 0.1), result("C", 0.9))
    rows = models_of([f"ours={tmp_path / '1'}", f"ours={tmp_path / '2'}", str(tmp_path / "other")])
    header, cells = grid(rows)
    assert header == ["", "A test, 3 queries"], "what all have; means of other tasks are no comparison"
    assert cells == [["ours", "50.00 ± 14.14"], ["other", "10.00"]]
    assert grid(rows[:1], named={"both": ["A", "B"], "none": ["X"]})[0] == [
        "", "mean over kinds", "mean over tasks", "both", "A test, 3 queries", "B test, 3 queries"
    ]  # fmt: skip
    assert as_markdown(header, cells).splitlines()[2] == "| ours | 50.00 ± 14.14 |"
    with pytest.raises(ValueError, match="'x' hold different tasks"):
        models_of([f"x={tmp_path / '1'}", f"x={tmp_path / 'other'}"])
    with pytest.raises(FileNotFoundError, match="holds no results; embrew evaluate --output"):
        models_of([str(tmp_path)])
    save(tmp_path / "apart", result("Z"))
    with pytest.raises(ValueError, match="no task, split and size in common"):
        grid(models_of([str(tmp_path / "1"), str(tmp_path / "apart")]))


@pytest.mark.parametrize("kind", ["sts", "per-subset", "pair_classification"])
def test_samples_equal_the_metric_of_the_drawn_examples_one_by_one(kind):
    rng = np.random.default_rng(4)
    predicted = rng.integers(0, 20, size=80) / 20  # with ties
    gold = rng.integers(0, 2 if kind == "pair_classification" else 6, size=80)
    subset = rng.choice(["a", "b"], size=80)
    scores = {"protocol": "per-subset" if kind == "per-subset" else "all"}
    examples = {"predicted": predicted.tolist(), "gold": gold.tolist(), "subset": subset.tolist()}
    task_kind = "pair_classification" if kind == "pair_classification" else "sts"
    (samples,) = bootstrap([[Result("T", "test", task_kind, 0.0, scores, 1.0, {}, examples)]], samples=50, seed=7)

    def metric(rows):
        if kind == "pair_classification":
            return average_precision_score(gold[rows], predicted[rows])
        parts = [rows] if kind == "sts" else [rows[subset[rows] == name] for name in "ab"]
        return np.mean([spearmanr(predicted[part], gold[part]).statistic for part in parts])

    draws = np.random.default_rng(7).integers(0, 80, size=(50, 80))
    assert samples == pytest.approx([metric(rows) for rows in draws], abs=1e-12)


def test_samples_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch):
    scored = [[result(score=np.random.default_rng(1).uniform(size=30).tolist())]]
    expected = bootstrap(scored, samples=40)
    monkeypatch.setattr("embrew.evaluation.uncertainty._BLOCK", 90)
    assert bootstrap(scored, samples=40) == pytest.approx(expected, abs=1e-12)


def test_seeds_widen_the_interval_of_a_difference():
    rng = np.random.default_rng(5)
    base = rng.uniform(size=300)
    seeds = [result(main=float((base + shift).mean()), score=(base + shift).tolist()) for shift in (-0.1, 0.0, 0.1)]
    first = [result(score=base.tolist(), main=float(base.mean()))]

    def difference(others):
        samples = bootstrap([first, others])
        return paired_test(samples[1] - samples[0], mean_score(others) - mean_score(first))

    one_seed, several = difference(seeds[1:2]), difference(seeds)
    assert (one_seed.low, one_seed.high) == (0, 0), "the same scores"
    # The mean of three draws out of -0.1, 0, 0.1 has the standard deviation 0.1 · √(2/3) / √3 = 0.047.
    assert several.difference == pytest.approx(0, abs=1e-12)
    assert several.low == pytest.approx(-several.high, abs=0.01)
    assert 0.06 < several.high <= 0.1 + 1e-9


def test_p_values_are_corrected_as_holm_does():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # the example of R's p.adjust
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_difference_names_settings_and_scores(tmp_path):
    scores = np.linspace(0, 1, 50)
    a = save(
        tmp_path / "a", result("T", 0.5, score=scores.tolist()), model={"pooling": "last", "base": "x"}, dtype="float32"
    )
    better = result("T", 0.6, score=(scores + 0.1).tolist())
    b = save(tmp_path / "b", better, result("U"), model={"pooling": "mean", "base": "x"}, dtype="float32")
    compared = compare_models(models_of([str(a), str(b)]))
    assert differing_settings(compared.models) == {"model.pooling": ("last", "mean")}
    assert compared.left_out == (("U test", "only b has a result"),)
    (task,), (tested,) = compared.tasks, compared.differences(1)
    assert (task.label, task.scores) == ("T test, 3 queries", (0.5, 0.6))
    assert tested.p_value == tested.corrected < 0.01
    assert tested.outcome == "better"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dataset_revision": "2"}, "c was evaluated on another version of the data than a"),
        ({"settings": {"protocol": "all"}}, "c was evaluated by another protocol (protocol: 'all', not None) than a"),
        ({"kind": "sts"}, "c was evaluated as another kind of task (sts, not retrieval) than a"),
    ],
)
def test_results_of_other_data_or_protocols_are_not_compared(tmp_path, change, reason):
    kind = change.pop("kind", "retrieval")
    a = save(tmp_path / "a", result("T", 0.5, score=[0.5] * 3))
    c = save(tmp_path / "c", result("T", 0.9, kind=kind, score=[0.9] * 3), **change)
    compared = compare_models(models_of([str(a), str(c)]))
    assert not compared.tasks
    assert compared.left_out == (("T test", reason),)
    # Instructions and contexts belong to the model.
    save(tmp_path / "d", result("T", 0.9, score=[0.9] * 3), settings={"instruction": "Find: ", "batch_tokens": 64})
    assert compare_models(models_of([str(a), str(tmp_path / "d")])).tasks


def test_the_mean_is_tested_over_independent_tasks(tmp_path):
    rng = np.random.default_rng(6)
    folders = []
    for name, gain in (("a", 0.0), ("b", 0.02)):
        tasks = []
        for i in range(10):  # all of one size, so that they would be drawn with the same numbers
            scores = rng.uniform(size=100) + gain
            tasks.append(result(f"T{i}", float(scores.mean()), score=scores.tolist()))
        folders.append(str(save(tmp_path / name, *tasks)))
    compared = compare_models(models_of(folders))
    test = compared.mean_difference(1)
    # The variance of a difference of two uniforms is 1/6: over 10 tasks of 100 examples the mean has √(1/6000).
    assert (test.high - test.low) / (2 * 1.96) == pytest.approx(0.0129, rel=0.1)
    assert test.difference == pytest.approx(np.subtract(*reversed(compared.means())))


def test_a_verdict_says_what_the_numbers_say(tmp_path):
    rng = np.random.default_rng(8)
    base = rng.uniform(size=(4, 200))
    gains = {"up": (0.1, 0.2, 0.0, -0.1), "noise": (0.0, 0.0, 0.0, 0.0)}
    folders = [
        str(
            save(tmp_path / "base", *(result(f"T{i}", float(base[i].mean()), score=base[i].tolist()) for i in range(4)))
        )
    ]
    for name, shifts in gains.items():
        rows = [base[i] + shift + rng.normal(0, 0.05, size=200) for i, shift in enumerate(shifts)]
        tasks = [result(f"T{i}", float(row.mean()), score=row.tolist()) for i, row in enumerate(rows)]
        folders.append(str(save(tmp_path / name, *tasks)))
    mean, tasks = verdict(compare_models(models_of(folders[:2])))
    assert mean.startswith("up is better than base on the mean of 4 tasks: ")
    assert "points (95 % interval +" in mean
    assert (
        "better on 2 (T1 +" in tasks and "worse on 1 (T3 -" in tasks and "not distinguishable from base on 1" in tasks
    )
    assert "corrected for 4 tasks by Holm's method" in tasks
    mean, tasks = verdict(compare_models(models_of([folders[0], folders[2]])))
    assert "are not distinguishable on the mean of 4 tasks" in mean
    assert "better on 0 and worse on 0 of 4" in tasks
    assert "up was chosen as the best of 3 on these results" in verdict(compare_models(models_of(folders)))[0]
    assert verdict(compare_models(models_of(folders[1::-1])))[0].startswith("up is better than base"), "in any order"


def test_a_verdict_without_examples_tests_nothing(tmp_path):
    a = save(tmp_path / "a", result("T", 0.5, kind="clustering"))
    b = save(tmp_path / "b", result("T", 0.6, kind="clustering"))
    (mean,) = verdict(compare_models(models_of([str(a), str(b)])))
    assert mean.startswith(
        "b scores higher than a on the task T test, 3 queries, 60.00 against 50.00; no task has examples"
    )
    for folder, score in (("a", 0.7), ("b", 0.6)):
        save(tmp_path / folder, result("U", score, kind="clustering"))
    _, tasks = verdict(compare_models(models_of([str(a), str(b)])))
    assert tasks == "No difference between a and b can be tested: the results of T, U hold no examples."


def test_the_verbs(tmp_path):
    first = save(tmp_path / "one", result("T", 0.5, score=[0.0, 1.0] * 20), dtype="float32")
    second = save(tmp_path / "two", result("T", 0.75, score=[0.5, 1.0] * 20), dtype="bfloat16")
    done = CliRunner().invoke(app, ["table", str(first), f"two={second}", "--intervals", "-o", str(tmp_path / "t.md")])
    assert done.exit_code == 0, done.output
    assert "50.00 [" in done.output
    assert (tmp_path / "t.md").read_text().startswith("|  | T test, 3 queries |")
    done = CliRunner().invoke(app, ["diff", str(first), str(second)])
    assert done.exit_code == 0, done.output
    assert "bfloat16" in done.output
    assert "+25.00" in done.output
    refused = CliRunner().invoke(app, ["table", str(first), "-o", str(tmp_path / "t.txt")])
    assert refused.exit_code != 0
    assert json.loads((first / "T.test.examples.json").read_text()) == {"score": [0.0, 1.0] * 20}


def test_p_values_count_ties_half_and_are_never_zero():
    assert paired_test(np.ones(99), 1.0).p_value == pytest.approx(2 * 1 / 100)
    assert paired_test(np.array([-1.0, 0.0, 1.0]), 0.0).p_value == 1.0
    assert paired_test(np.array([0.0, *np.ones(98)]), 1.0).p_value == pytest.approx(2 * 1.5 / 100)
