"""What a comparison shows, in sentences made from its numbers."""

from collections.abc import Sequence

import numpy as np

from embrew.comparison.comparing import Comparison, TaskScores, Tested
from embrew.evaluation.uncertainty import Difference

MOST_NAMED = 3  # tasks that a sentence names


def verdict(comparison: Comparison) -> list[str]:
    """Return two sentences: on the mean over tasks, and on the tasks, of the best model against the first one.

    If the first model is the best, it is compared with the second best. Of a single model, one sentence with its mean.
    """
    if len(comparison.models) == 1:
        return [_of_one(comparison)]
    best, other = best_and_other(comparison)
    return [_on_the_mean(comparison, best, other), _on_tasks(comparison, best, other)]


def best_model(comparison: Comparison) -> int:
    """Return the index of the model with the highest mean over tasks."""
    return int(np.argmax(comparison.means()))


def best_and_other(comparison: Comparison) -> tuple[int, int]:
    """Return the best model and the one that it is compared with: the first; the second best if that is the best.

    A comparison with a candidate has this one in place of the best, and the first.
    """
    if comparison.candidate is not None:
        return comparison.candidate, 0
    order = np.argsort([-mean for mean in comparison.means()], kind="stable")
    best = int(order[0])
    return (best, 0) if best != 0 else (0, int(order[1]))


def _of_one(comparison: Comparison) -> str:
    (mean,) = comparison.means()
    tasks = comparison.tasks
    over = tasks[0].label if len(tasks) == 1 else f"the mean of {len(tasks)} tasks"
    return f"{comparison.models[0].name} scores {100 * mean:.2f} on {over}."


def _on_the_mean(comparison: Comparison, best: int, other: int) -> str:
    a, b = comparison.models[other].name, comparison.models[best].name
    tasks = comparison.tested or comparison.tasks
    over = f"the task {tasks[0].label}" if len(tasks) == 1 else f"the mean of {len(tasks)} tasks"
    means = comparison.means(tasks)
    scores = f"{100 * means[best]:.2f} against {100 * means[other]:.2f}"
    test = comparison.mean_difference(best, other)
    chosen = f"; {b} was chosen as the best of {len(means)} on these results" if len(means) > 2 else ""
    if comparison.candidate is not None:
        chosen = f"; {a} was chosen as the best untrained model on these results, which favours it"
    if test is None:
        higher = "has the same score as" if means[best] == means[other] else "scores higher than"
        return f"{b} {higher} {a} on {over}, {scores}; no task has examples to test the difference on{chosen}."
    by = f"{scores}, a difference of {points(test)}{chosen}"
    if _is_distinguishable(test):
        return f"{b} is {'better' if test.difference > 0 else 'worse'} than {a} on {over}: {by}."
    return f"{b} and {a} are not distinguishable on {over}: {by}."


def _on_tasks(comparison: Comparison, best: int, other: int) -> str:
    a, b = comparison.models[other].name, comparison.models[best].name
    differences = comparison.differences(best, other)
    found = [(task, one) for task, one in zip(comparison.tasks, differences, strict=True) if one is not None]
    untested = [task.first.task for task in comparison.tasks if not task.is_tested]
    rest = f"; not tested, for want of examples: {_names(untested)}" if untested else ""
    if not found:
        return f"No difference between {b} and {a} can be tested: the results of {_names(untested)} hold no examples."
    parts = []
    for outcome, sign in (("better", -1), ("worse", 1)):
        some = sorted((pair for pair in found if pair[1].outcome == outcome), key=lambda p: sign * p[1].test.difference)
        parts.append(f"{outcome} on {len(some)}{_shown(some)}")
    same = sum(one.outcome == "not distinguishable" for _, one in found)
    corrected = f"5 % level, corrected for {len(found)} tasks by Holm's method" if len(found) > 1 else "5 % level"
    return (
        f"Task by task, {b} is {parts[0]} and {parts[1]} of {len(found)}, and not distinguishable from {a} on {same} "
        f"({corrected}){rest}."
    )


def points(test: Difference) -> str:
    """Return a difference in points (score × 100) with its 95 % interval."""
    return f"{100 * test.difference:+.2f} points (95 % interval {100 * test.low:+.2f} to {100 * test.high:+.2f})"


def _is_distinguishable(test: Difference) -> bool:
    """Whether the 95 % interval excludes zero."""
    return test.low > 0 or test.high < 0


def _shown(found: Sequence[tuple[TaskScores, Tested]]) -> str:
    if not found:
        return ""
    shown = [f"{task.first.task} {100 * one.test.difference:+.2f}" for task, one in found[:MOST_NAMED]]
    return f" ({'largest: ' if len(found) > MOST_NAMED else ''}{', '.join(shown)})"


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
