"""Verdicts on orderings: every expected figure is worked out by hand."""

import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import verdicts
from result_orderings import read_orderings


def test_three_seeds_above():
    """Differences 3, 3.5 and 4: mean 3.5, deviation 0.5; t of 2 degrees of freedom is 4.3027, so ± 4.3027·0.5/√3."""
    found = verdicts.compare(verdicts.Scores([53, 54, 55], [1, 2, 3]), verdicts.Scores([50, 50.5, 51], [1, 2, 3]))
    assert (found.result, found.difference, found.seeds, found.agreeing) == ("for", 3.5, 3, 3)
    assert found.ends == pytest.approx((3.5 - 1.24207, 3.5 + 1.24207), abs=1e-4)
    assert not found.by_sign


def test_three_seeds_that_vary_agree_by_sign_alone():
    """Differences 1, 2, 3: mean 2, deviation 1, ± 4.3027/√3 = 2.4841, which includes 0."""
    found = verdicts.compare(verdicts.Scores([50, 52, 54], [1, 2, 3]), verdicts.Scores([49, 50, 51], [1, 2, 3]))
    assert (found.result, found.by_sign) == ("for", True)
    assert found.ends == pytest.approx((-0.48414, 4.48414), abs=1e-4)


def test_mixed_and_reversed_seeds():
    than = verdicts.Scores([50, 50, 50], [1, 2, 3])
    mixed = verdicts.compare(verdicts.Scores([51, 49, 55], [1, 2, 3]), than)
    assert (mixed.result, mixed.why, mixed.agreeing) == ("open", "the seeds disagree", 2)
    assert verdicts.compare(verdicts.Scores([49, 48, 49.9], [1, 2, 3]), than).result == "against"
    assert verdicts.compare(verdicts.Scores([49, 48, 50], [1, 2, 3]), than).result == "open"  # one is equal


def test_pairs_are_those_of_the_same_seed():
    """By seed 0.5 each; by place in the list -1.5, 1.5 and 1.5."""
    found = verdicts.compare(verdicts.Scores([1, 2, 3], [1, 2, 3]), verdicts.Scores([2.5, 0.5, 1.5], [3, 1, 2]))
    assert (found.result, found.difference) == ("for", 0.5)
    four = verdicts.compare(verdicts.Scores([1, 2, 3, -9], [1, 2, 3, 4]), verdicts.Scores([0, 1, 2], [1, 2, 3]))
    assert (four.result, four.seeds) == ("for", 3)  # seed 4 has no counterpart


def test_one_seed_decides_nothing():
    found = verdicts.compare(verdicts.Scores([60], [1]), verdicts.Scores([10, 11, 12], [1, 2, 3]))
    assert (found.result, found.why, found.difference) == ("open", "one seed", 49)
    assert verdicts.compare(verdicts.Scores([60], [1]), verdicts.Scores([10], [1])).why == "one seed"


@pytest.mark.parametrize(("lower", "higher", "expected"), [([4, 6], [10, 12], "open"), ([3, 5], [10, 12], "for")])
def test_other_seeds_by_welch(lower, higher, expected):
    """Variances of 2, 2 seeds: the difference has one of 2, and 2²/(1 + 1) = 2 degrees of freedom, ± √2·4.3027."""
    found = verdicts.compare(verdicts.Scores(higher, [1, 2]), verdicts.Scores(lower, [3, 4]))
    difference = sum(higher) / 2 - sum(lower) / 2
    assert found.ends == pytest.approx((difference - 6.08488, difference + 6.08488), abs=1e-4)
    assert (found.result, found.seeds) == (expected, 0)
    swapped = verdicts.compare(verdicts.Scores(lower, [3, 4]), verdicts.Scores(higher, [1, 2]))
    assert swapped.result == {"for": "against", "open": "open"}[expected]
    assert verdicts.compare(verdicts.Scores(higher), verdicts.Scores(lower)).result == expected  # seeds not known


def test_a_row_in_which_nothing_is_drawn_stands_beside_every_seed():
    fixed = verdicts.Scores([50], fixed=True)
    assert verdicts.compare(verdicts.Scores([51, 52, 53], [1, 2, 3]), fixed).result == "for"
    assert verdicts.compare(fixed, verdicts.Scores([51, 52, 53], [1, 2, 3])).result == "against"
    assert verdicts.compare(verdicts.Scores([51], [1]), fixed).why == "one seed"
    assert verdicts.compare(verdicts.Scores([51], fixed=True), fixed).why == "nothing drawn"
    # two seeds: ± 12.7062·√(2/2) around 9 with one degree of freedom
    two = verdicts.compare(verdicts.Scores([58, 60], [1, 2]), fixed)
    assert (two.result, two.ends) == ("open", pytest.approx((9 - 12.7062, 9 + 12.7062), abs=1e-3))


def test_lower_is_better():
    ours, theirs = verdicts.Scores([2, 3, 4], [1, 2, 3]), verdicts.Scores([9, 9, 9], [1, 2, 3])
    assert verdicts.compare(ours, theirs, lower=True).result == "for"
    assert verdicts.compare(ours, theirs).result == "against"


@pytest.mark.parametrize(
    ("differences", "at_least", "equal"),
    [
        ([-0.9, 0.2, 5], "for", "open"),
        ([-0.9, 0.2, 0.9], "for", "for"),
        ([-1.1, -2, -3], "against", "against"),
        ([-1.1, 0, 0], "open", "open"),
        ([1.1, 2, 3], "for", "against"),
        ([-9, 5, 16], "open", "open"),
    ],
)
def test_not_below_and_equal(differences, at_least, equal):
    ours, theirs = verdicts.Scores(differences, [1, 2, 3]), verdicts.Scores([0, 0, 0], [1, 2, 3])
    assert verdicts.compare(ours, theirs, "≥", margin=1).result == at_least
    assert verdicts.compare(ours, theirs, "≈", margin=1).result == equal


def test_spread():
    """Variances 1 and 100 of three seeds. F with 2 and 2 degrees of freedom is below x with x/(1 + x): 97.5 % at 39."""
    ours, theirs = verdicts.Scores([1, 2, 3], [1, 2, 3]), verdicts.Scores([0, 10, 20], [4, 5, 6])
    found = verdicts.compare(ours, theirs, "varies less than")
    assert (found.result, found.difference) == ("for", 100)
    assert found.ends == pytest.approx((100 / 39, 3900), rel=1e-6)
    assert verdicts.compare(theirs, ours, "varies less than").result == "against"
    near = verdicts.compare(ours, verdicts.Scores([0, 2, 4], [1, 2, 3]), "varies less than")
    assert (near.result, near.difference) == ("open", 4)
    assert verdicts.compare(ours, verdicts.Scores([1]), "varies less than").why == "one seed"
    assert verdicts.compare(verdicts.Scores([1, 1], [1, 2]), theirs, "varies less than").result == "open"


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        (["for", "for"], "reproduced"),
        (["for", "against"], "refuted"),
        (["for", "open"], "not resolvable here"),
        ([], "not measured"),
        (["not run", "not run"], "not measured"),
        (["for", "not run"], "not resolvable here"),
        (["against", "not run"], "refuted"),
    ],
)
def test_a_claim_of_several_comparisons(results, verdict):
    assert verdicts.combine([verdicts.Outcome(result) for result in results]) == verdict


def test_a_row_that_was_not_run_is_one_of_its_plan():
    """Otherwise a wrong name in `docs/orderings.yaml` would stay "not run" for ever."""
    root = Path(__file__).parents[2]
    for ordering in read_orderings(root / "docs" / "orderings.yaml"):
        for place in ordering.places:
            for one in place.compared:
                if one.outcome().result != verdicts.NOT_RUN:
                    continue
                for file, row in ((one.file, one.better), (one.than_file or one.file, one.than)):
                    plan = root / "benchmarks" / "plans" / f"{file.removesuffix('-collapse')}.yaml"
                    rows = [entry["row"] for entry in yaml.safe_load(plan.read_text()).get("rows", [])]
                    known = any(row == name or row.startswith((f"{name}: ", f"{name}, ")) for name in rows)
                    assert known or not rows, f"ordering {ordering.number}: {file} has no row {row!r}"
