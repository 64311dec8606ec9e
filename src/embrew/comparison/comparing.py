"""Tasks that several models have alike, their scores, and differences from the first model with paired tests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from embrew.comparison.comparable import LeftOut, comparable
from embrew.comparison.models import Model
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.report import Result, label_of, size_of
from embrew.evaluation.uncertainty import (
    LEVEL,
    SAMPLES,
    Difference,
    bootstrap,
    check_same_examples,
    holm,
    main_score,
    of_samples,
)

Outcome = Literal["better", "worse", "not distinguishable"]


class Tested(NamedTuple):
    """A paired test; `corrected` is the p-value corrected for the number of tested tasks by Holm's method."""

    test: Difference
    corrected: float

    @property
    def outcome(self) -> Outcome:
        """What the test says at the 5 % level, after the correction."""
        if self.corrected > LEVEL:
            return "not distinguishable"
        return "better" if self.test.difference > 0 else "worse"


@dataclass(frozen=True)
class TaskScores:
    """A task with the results of each model, one per seed."""

    results: tuple[tuple[Result, ...], ...]

    @property
    def first(self) -> Result:
        """A result, for what all have in common: task, split, kind, counts."""
        return self.results[0][0]

    @property
    def label(self) -> str:
        """Task, split and size."""
        return label_of(self.first)

    @property
    def size(self) -> str:
        """Size, such as `1379 pairs`."""
        return size_of(self.first.counts)

    @property
    def metric(self) -> str:
        """Name of the main score."""
        return "exact match" if "exact_match" in self.first.scores else KINDS[self.first.kind].metric

    @property
    def scores(self) -> tuple[float, ...]:
        """Main score of each model, from 0 to 1: the mean over its seeds."""
        return tuple(map(main_score, self.results))

    @property
    def is_tested(self) -> bool:
        """Whether all results have examples to draw from."""
        return all(result.examples for result in chain(*self.results))


@dataclass(frozen=True)
class Comparison:
    """Models on the tasks that they have alike; the first model is the base of all differences.

    Attributes:
        candidate: Index of the model that the verdict is about, against the first, which was chosen as the best
            untrained one; None: the best model, whichever it is.
    """

    models: tuple[Model, ...]
    tasks: tuple[TaskScores, ...]
    left_out: tuple[LeftOut, ...] = ()
    candidate: int | None = None

    def means(self, tasks: Sequence[TaskScores] | None = None) -> tuple[float, ...]:
        """Return each model's mean main score over tasks, from 0 to 1."""
        chosen = self.tasks if tasks is None else tasks
        return tuple(float(np.mean(scores)) for scores in zip(*(task.scores for task in chosen), strict=True))

    @property
    def tested(self) -> tuple[TaskScores, ...]:
        """The tasks with examples."""
        return tuple(task for task in self.tasks if task.is_tested)

    def differences(self, model: int, base: int = 0) -> tuple[Tested | None, ...]:
        """Return the test of each task for one model minus another; None for tasks without examples."""
        tests = [self._test(i, model, base) if task.is_tested else None for i, task in enumerate(self.tasks)]
        corrected = iter(holm([test.p_value for test in tests if test is not None]))
        return tuple(None if test is None else Tested(test, next(corrected)) for test in tests)

    def mean_difference(
        self, model: int, base: int = 0, tasks: Sequence[TaskScores] | None = None
    ) -> Difference | None:
        """Return the test of the mean over `tasks`, or over all; None if none is tested, and the others do not count.

        The tasks are fixed and their examples are drawn: the interval says how the mean would vary with other
        examples of the same tasks, not with other tasks.
        """
        wanted = self.tasks if tasks is None else tasks
        chosen = [i for i, task in enumerate(self.tasks) if task.is_tested and task in wanted]
        if not chosen:
            return None
        samples = [self._samples[i][model] - self._samples[i][base] for i in chosen]
        # Tasks of one size are drawn with the same numbers: shuffled, so that tasks are independent of each other.
        shuffled = [np.random.default_rng(i).permutation(one) for i, one in zip(chosen, samples, strict=True)]
        means = self.means([self.tasks[i] for i in chosen])
        return of_samples(np.mean(shuffled, axis=0), means[model] - means[base])

    def _test(self, task: int, model: int, base: int) -> Difference:
        scores = self.tasks[task].scores
        samples = self._samples[task]
        return of_samples(samples[model] - samples[base], scores[model] - scores[base])

    @cached_property
    def _samples(self) -> list[list[np.ndarray]]:
        """Bootstrap samples by task and model; empty for tasks without examples."""
        samples = samples_for(len(self.tested))
        return [list(bootstrap(task.results, samples=samples)) if task.is_tested else [] for task in self.tasks]


def samples_for(tests: int) -> int:
    """Return the number of bootstrap samples with which one of `tests` p-values can be significant when corrected."""
    return max(SAMPLES, 50 * tests)


def compare_models(models: Sequence[Model]) -> Comparison:
    """Compare models on the tasks that all have alike; what is left out is named with the reason.

    Raises:
        ValueError: no model, or two of one name.
    """
    names = [model.name for model in models]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a comparison of {', '.join(names) or 'no model'}; give models, each once")
    keys, left_out = comparable(models)
    tasks = tuple(TaskScores(tuple(_seeds(model, key) for model in models)) for key in keys)
    for task in tasks:
        if task.is_tested:
            check_same_examples(list(chain(*task.results)))
    return Comparison(tuple(models), tasks, tuple(left_out))


def _seeds(model: Model, key: tuple[str, str]) -> tuple[Result, ...]:
    def found() -> Iterator[Result]:
        for run in model.runs:
            yield from (result for result in run if (result.task, result.split) == key)

    return tuple(found())
