"""What a comparison shows, in sentences made from its numbers."""

from collections.abc import Sequence

import numpy as np

from embrew.evaluation.uncertainty import Difference
from embrew.report.comparison import Comparison, TaskScores, Tested

NAMED_TASKS = 3  # maximum number of tasks that a sentence names


def verdict(comparison: Comparison) -> list[str]:
    """Return sentences on the best model against the first one: on the mean over tasks, and on the tasks if several.

    If the first model is the best, it is compared with the second best. Of three models or more, also the runner-up
    with its distance from the best, and the models that are worse than the best and than the first one. Of a single
    model, one sentence with its mean.
    """
    if len(comparison.models) == 1:
        (mean,), tasks = comparison.means(), comparison.tasks
        scored_on = tasks[0].label if len(tasks) == 1 else f"the mean of {len(tasks)} tasks"
        return [f"{comparison.models[0].name} scores {100 * mean:.2f} on {scored_on}."]
    best, other = best_and_other(comparison)
    mean_sentence = f"{_mean_sentence(comparison, best, other)}{_choice_clause(comparison, best, other)}."
    sentences = [mean_sentence, _task_sentence(comparison, best, other) if len(comparison.tasks) > 1 else ""]
    if len(comparison.models) > 2:
        sentences.append(_runner_up_sentence(comparison, best, other))
        sentences += [_worse_sentence(comparison, base) for base in dict.fromkeys((best, 0))]
    return [sentence for sentence in sentences if sentence]


def best_and_other(comparison: Comparison) -> tuple[int, int]:
    """Return the best model and the one that it is compared with: the first; the second best if that is the best."""
    best, second, *_ = _by_mean(comparison)
    return (best, 0) if best != 0 else (0, second)


def _by_mean(comparison: Comparison) -> list[int]:
    """Return the models by their mean, the best first."""
    return [int(i) for i in np.argsort([-mean for mean in comparison.means()], kind="stable")]


def _mean_sentence(comparison: Comparison, best: int, other: int) -> str:
    other_name, best_name = comparison.models[other].name, comparison.models[best].name
    over, means = _tasks_in_words(comparison), comparison.means(comparison.tested or comparison.tasks)
    scores = f"{100 * means[best]:.2f} against {100 * means[other]:.2f}"
    test = comparison.mean_difference(best, other)
    if test is None:
        higher = "has the same score as" if means[best] == means[other] else "scores higher than"
        return f"{best_name} {higher} {other_name} on {over}, {scores}; no task has examples to test the difference on"
    by = f"{scores}, a difference of {points(test)}"
    if test.low > 0 or test.high < 0:
        return f"{best_name} is {'better' if test.difference > 0 else 'worse'} than {other_name} on {over}: {by}"
    return f"{best_name} and {other_name} are not distinguishable on {over}: {by}"


def _tasks_in_words(comparison: Comparison) -> str:
    """Return what means are over: the tasks that can be tested, or all if none can."""
    tasks = comparison.tested or comparison.tasks
    return f"the task {tasks[0].label}" if len(tasks) == 1 else f"the mean of {len(tasks)} tasks"


def _choice_clause(comparison: Comparison, best: int, other: int) -> str:
    """Return how the best model of three or more was chosen; and that the other is the second best, if it is."""
    count, names = len(comparison.models), [model.name for model in comparison.models]
    if count == 2:
        return ""
    second = f", {names[other]} is the runner-up" if other == _by_mean(comparison)[1] else ""
    return f"; {names[best]} was chosen as the best of {count} on these results{second}"


def _runner_up_sentence(comparison: Comparison, best: int, other: int) -> str:
    """Return the distance between the best model and the second best; empty if the other model is the second best."""
    second = _by_mean(comparison)[1]
    if second == other:
        return ""
    return f"The runner-up is {comparison.models[second].name}: {_mean_sentence(comparison, best, second)}."


def _worse_sentence(comparison: Comparison, base: int) -> str:
    """Return the models that are worse than another on the mean over tasks; empty if no task can be tested."""
    if not comparison.tested:
        return ""
    name, over = comparison.models[base].name, _tasks_in_words(comparison)
    tests = [
        (model.name, comparison.mean_difference(i, base)) for i, model in enumerate(comparison.models) if i != base
    ]
    worse = [f"{other} {points(test)}" for other, test in tests if test is not None and test.high < 0]
    return f"Worse than {name} on {over}: {', '.join(worse)}." if worse else f"No model is worse than {name} on {over}."


def _task_sentence(comparison: Comparison, best: int, other: int) -> str:
    other_name, best_name = comparison.models[other].name, comparison.models[best].name
    tests = comparison.differences(best, other)
    tested = [(task, test) for task, test in zip(comparison.tasks, tests, strict=True) if test is not None]
    untested = _task_names([task.first.task for task in comparison.tasks if not task.is_tested])
    if not tested:
        return (
            f"No difference between {best_name} and {other_name} can be tested: the results of {untested} hold no "
            "examples."
        )
    rest = f"; not tested, for want of examples: {untested}" if untested else ""
    counts = []
    for outcome, sign in (("better", -1), ("worse", 1)):
        differing = [(task, test) for task, test in tested if test.outcome == outcome]
        differing.sort(key=lambda entry: sign * entry[1].difference)
        counts.append(f"{outcome} on {len(differing)}{_largest(differing)}")
    same = sum(test.outcome is None for _, test in tested)
    corrected = f"5 % level, corrected for {len(tested)} tasks by Holm's method" if len(tested) > 1 else "5 % level"
    return (
        f"Task by task, {best_name} is {counts[0]} and {counts[1]} of {len(tested)}, and not distinguishable from "
        f"{other_name} on {same} ({corrected}){rest}."
    )


def points(test: Difference, *, digits: int = 2) -> str:
    """Return a difference in points (score × 100) with its 95 % interval."""
    difference, low, high = (f"{100 * value:+.{digits}f}" for value in (test.difference, test.low, test.high))
    return f"{difference} points (95 % interval {low} to {high})"


def _largest(tested: Sequence[tuple[TaskScores, Tested]]) -> str:
    if not tested:
        return ""
    differences = [f"{task.first.task} {100 * test.difference:+.2f}" for task, test in tested[:NAMED_TASKS]]
    return f" ({'largest: ' if len(tested) > NAMED_TASKS else ''}{', '.join(differences)})"


def _task_names(names: Sequence[str]) -> str:
    more = len(names) - NAMED_TASKS
    return ", ".join(names[:NAMED_TASKS]) + (f" and {more} more" if more > 0 else "")
