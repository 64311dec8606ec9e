"""The verdict of three models or more: the best, the runner-up, and those that are worse, by hand."""

from collections.abc import Sequence

from embrew.evaluation.results import Result
from embrew.report import Model, compare_models, verdict

LABEL = "the task T test, 40 queries"


def sentences(*models: tuple[str, float], examples: bool = True) -> Sequence[str]:
    """Return the verdict of models whose 40 queries all have one score, so that intervals are points."""
    compared = []
    for name, score in models:
        scores = {"score": [score] * 40} if examples else {}
        compared.append(Model(name, [[Result("T", "test", "retrieval", score, {}, 1.0, {"queries": 40}, scores)]]))
    return verdict(compare_models(compared))


def test_the_runner_up_and_the_worse_are_named():
    first, *others = sentences(("untrained", 0.5), ("third", 0.5), ("best", 0.75), ("worst", 0.25), ("second", 0.7))
    assert first.startswith(f"best is better than untrained on {LABEL}: 75.00 against 50.00")
    assert first.endswith("best was chosen as the best of 5 on these results.")
    assert others == [
        f"The runner-up is second: best is better than second on {LABEL}: 75.00 against 70.00, a difference of +5.00 "
        "points (95 % interval +5.00 to +5.00).",
        f"Worse than best on {LABEL}: untrained -25.00 points (95 % interval -25.00 to -25.00), third -25.00 points "
        "(95 % interval -25.00 to -25.00), worst -50.00 points (95 % interval -50.00 to -50.00), second -5.00 points "
        "(95 % interval -5.00 to -5.00).",
        f"Worse than untrained on {LABEL}: worst -25.00 points (95 % interval -25.00 to -25.00).",
    ]


def test_the_first_model_is_the_runner_up_or_the_best():
    first, *others = sentences(("untrained", 0.5), ("best", 0.75), ("worst", 0.25))
    assert first.endswith("best was chosen as the best of 3 on these results, untrained is the runner-up.")
    assert [one.partition(":")[0] for one in others] == [
        f"Worse than best on {LABEL}",
        f"Worse than untrained on {LABEL}",
    ]
    first, *others = sentences(("untrained", 0.75), ("a", 0.5), ("b", 0.75))
    assert first.startswith(f"untrained and b are not distinguishable on {LABEL}: 75.00 against 75.00")
    assert first.endswith("untrained was chosen as the best of 3 on these results, b is the runner-up.")
    assert others == [f"Worse than untrained on {LABEL}: a -25.00 points (95 % interval -25.00 to -25.00)."]
    *_, last = sentences(("untrained", 0.5), ("a", 0.5), ("b", 0.75))
    assert last == f"No model is worse than untrained on {LABEL}."
