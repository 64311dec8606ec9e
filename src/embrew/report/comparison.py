"""Comparison of models: tasks that all have alike, paired tests against the first model, settings that differ."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple

import numpy as np

from embrew.evaluation.results import Result, label_of, mean_score, read_result, result_files
from embrew.evaluation.uncertainty import (
    LEVEL,
    SAMPLES,
    Difference,
    bootstrap,
    check_same_examples,
    holm,
    paired_test,
)
from embrew.files.reading import read_json

CHOICE = Path("untrained", "choice.json")
"""In a result folder: the pooling that was chosen for a bare language model, beside its dev scores."""

# Settings of a task that belong to the model, and those that change no vector.
MODEL_SETTINGS = frozenset({"instruction", "context", "batch_tokens"})
TASK_KEYS = ("counts", "task", "split", "kind")
DifferingSettings = dict[str, tuple[Any, ...]]  # values of each model by dotted key


@dataclass(frozen=True)
class Model:
    """A model in a table or report.

    Attributes:
        name: Name in tables.
        seeds: Results of each seed.
    """

    name: str
    seeds: Sequence[Sequence[Result]]


def read_folder(folder: str | Path) -> tuple[Result, ...]:
    """Read the results of a folder with their sidecars, sorted by file name.

    Raises:
        FileNotFoundError: no such folder, or it holds no results.
        ValueError: they are of several models.
    """
    files = result_files(Path(folder))
    if not files:
        raise FileNotFoundError(f"{folder} holds no results; embrew evaluate --output {quote(str(folder))} writes them")
    results = tuple(map(read_result, files))
    hashes = [result.run.get("model_hash") for result in results]
    if other := next((file for file, of in zip(files, hashes, strict=True) if of != hashes[0]), None):
        raise ValueError(
            f"{folder} holds results of several models: {other.name} is of another one than {files[0].name}; evaluate "
            "each model into its own folder"
        )
    return results


def pooling_of_results(folder: str | Path) -> str | None:
    """Return the pooling that was chosen for the language model whose results a folder holds; None if none was."""
    file = Path(folder) / CHOICE
    return str(read_json(file, keys=("pooling",), sealed=True)["pooling"]) if file.is_file() else None


def with_pooling(name: str, *poolings: str | None) -> str:
    """Return the name of a model, with the poolings that were chosen for its seeds."""
    chosen = ", ".join(sorted({pooling for pooling in poolings if pooling}))
    return f"{name} ({chosen})" if chosen else name


def folders_by_name(entries: Sequence[str]) -> dict[str, list[str]]:
    """Return paths by name: `NAME=PATH` sets the name, paths of the same name are seeds of one model.

    What exists is a path, also with `=` in it. A path without a name has that of its folder, or `RUN/STAGE` where
    several folders have the same.
    """
    plain = {entry for entry in entries if "=" not in entry or os.path.lexists(entry)}
    split = [("", entry) if entry in plain else entry.partition("=")[::2] for entry in entries]
    unnamed = {path for name, path in split if not name}
    folders: dict[str, list[str]] = {}
    for name, path in split:
        parts = Path(path).absolute().parts  # also of "."
        folder_name = parts[-1]
        if not name and sum(Path(other).absolute().name == folder_name for other in unnamed) > 1:
            folder_name = "/".join(parts[-2:])
        folders.setdefault(name or folder_name, []).append(path)
    return folders


def models_of(entries: Sequence[str]) -> list[Model]:
    """Return models from result folders, named as `folders_by_name` says.

    Raises:
        FileNotFoundError: a folder without results.
        ValueError: the folders of one name hold different tasks; a folder holds results of several models; a task was
            not evaluated alike by all.
    """
    models = [
        Model(with_pooling(name, *map(pooling_of_results, folders)), tuple(map(read_folder, folders)))
        for name, folders in folders_by_name(entries).items()
    ]
    for model in models:
        check_same_tasks(model)
    return models


def check_same_data(models: Sequence[Model]) -> None:
    """Raise if a task of one name, split and size is of other data in another folder, or of another protocol."""
    first: dict[str, tuple[Result, str]] = {}
    for model in models:
        for result in (result for run in model.seeds for result in run):
            other, name = first.setdefault(label_of(result), (result, model.name))
            if different := _different(other, result):
                raise ValueError(
                    f"{result.task} {result.split} of {model.name} was evaluated {different} than of {name}; evaluate "
                    "both alike"
                )


def check_same_tasks(model: Model) -> None:
    """Raise if the seeds of a model have results of different tasks, or of other data."""
    if len({tuple((result.task, result.split) for result in run) for run in model.seeds}) > 1:
        raise ValueError(
            f"the folders of {model.name!r} hold different tasks; give them different names, or the same tasks"
        )
    check_same_data([model])


@dataclass(frozen=True)
class Tested(Difference):
    """A paired test; `corrected` is the p-value corrected for the number of tested tasks by Holm's method."""

    corrected: float

    @property
    def outcome(self) -> Literal["better", "worse"] | None:
        """What the test says at the 5 % level, after the correction; None: not distinguishable."""
        return None if self.corrected > LEVEL else "better" if self.difference > 0 else "worse"


class LeftOut(NamedTuple):
    """A task that is not compared, and why."""

    task: str
    reason: str


@dataclass(frozen=True)
class TaskScores:
    """A task with the results of each model, one per seed."""

    results: tuple[tuple[Result, ...], ...]

    @property
    def first(self) -> Result:
        """A result, for what all have in common: task, split, kind, counts."""
        return self.results[0][0]

    @property
    def key(self) -> tuple[str, str]:
        """Name and split."""
        return self.first.task, self.first.split

    @property
    def label(self) -> str:
        """Task, split and size."""
        return label_of(self.first)

    @property
    def scores(self) -> tuple[float, ...]:
        """Main score of each model, from 0 to 1: the mean over its seeds."""
        return tuple(map(mean_score, self.results))

    @property
    def is_tested(self) -> bool:
        """Whether all results have examples to draw from."""
        return all(result.examples for result in chain(*self.results))


@dataclass(frozen=True)
class Comparison:
    """Models on the tasks that they have alike; the first model is the base of all differences."""

    models: tuple[Model, ...]
    tasks: tuple[TaskScores, ...]
    left_out: tuple[LeftOut, ...] = ()

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
        tests = [
            paired_test(samples[model] - samples[base], task.scores[model] - task.scores[base]) if samples else None
            for task, samples in zip(self.tasks, self._samples, strict=True)
        ]
        corrected = iter(holm([test.p_value for test in tests if test is not None]))
        return tuple(None if test is None else Tested(**vars(test), corrected=next(corrected)) for test in tests)

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
        shuffled = [np.random.default_rng(i).permutation(values) for i, values in zip(chosen, samples, strict=True)]
        means = self.means([self.tasks[i] for i in chosen])
        return paired_test(np.mean(shuffled, axis=0), means[model] - means[base])

    @cached_property
    def _samples(self) -> list[list[np.ndarray]]:
        """Bootstrap samples by task and model; empty for tasks without examples."""
        # enough that a corrected p-value can be significant
        samples = max(SAMPLES, 50 * len(self.tested))
        return [list(bootstrap(task.results, samples=samples)) if task.is_tested else [] for task in self.tasks]


def compare_models(models: Sequence[Model]) -> Comparison:
    """Compare models with distinct names on tasks evaluated alike for all; name the other tasks with the reason."""
    by_task: dict[tuple[str, str], list[list[Result]]] = {}  # one list per model, one result per seed
    for i, model in enumerate(models):
        for result in chain(*model.seeds):
            by_task.setdefault((result.task, result.split), [[] for _ in models])[i].append(result)
    tasks, left_out = [], []
    for (task, split), results in by_task.items():
        reason = _not_comparable(models, results)
        if reason is not None:
            left_out.append(LeftOut(f"{task} {split}", reason))
            continue
        tasks.append(TaskScores(tuple(map(tuple, results))))
        if tasks[-1].is_tested:
            check_same_examples(list(chain(*tasks[-1].results)))
    return Comparison(tuple(models), tuple(tasks), tuple(left_out))


def _not_comparable(models: Sequence[Model], results: Sequence[Sequence[Result]]) -> str | None:
    """Return why the models' results of a task cannot be compared; None if they can."""
    results_by_model = list(zip(models, results, strict=True))
    evaluated = [model.name for model, seeds in results_by_model if len(seeds) == len(model.seeds)]
    if len(evaluated) < len(models):
        if not evaluated:
            return "not all seeds"
        return f"only {', '.join(evaluated)} {'has' if len(evaluated) == 1 else 'have'} a result"
    for model, seeds in results_by_model:
        for result in seeds:
            different = _different(results[0][0], result)
            if different:
                return f"{model.name} was evaluated {different} than {models[0].name}"
    return None


def _different(first: Result, second: Result) -> str | None:
    """Return the difference in evaluation that makes two results of a task incomparable; None if there is none."""
    if first.kind != second.kind:
        return f"as another kind of task ({second.kind}, not {first.kind})"
    if first.run.get("dataset_revision") != second.run.get("dataset_revision"):
        return "on another version of the data"
    ours, theirs = (
        {key: value for key, value in result.run.get("settings", {}).items() if key not in MODEL_SETTINGS}
        for result in (first, second)
    )
    keys = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if keys:
        return "by another protocol (" + ", ".join(f"{k}: {theirs.get(k)!r}, not {ours.get(k)!r}" for k in keys) + ")"
    if first.counts and second.counts:
        counts = {
            key: (first.counts.get(key, 0), second.counts.get(key, 0)) for key in {**first.counts, **second.counts}
        }
        if differing := [
            f"{key}: {count}, not {expected}" for key, (expected, count) in counts.items() if count != expected
        ]:
            return f"on another number of examples ({', '.join(differing)})"
    if first.scores.get("metric") != second.scores.get("metric"):
        return "by another metric"
    return None


def differing_settings(models: Sequence[Model]) -> DifferingSettings:
    """Return settings by dotted key with each model's value, only those that differ on a task that all have.

    Values are those of each model's first seed, and of the first task on which they differ.
    """
    runs = [{(result.task, result.split): result.run for result in model.seeds[0]} for model in models]
    differing: DifferingSettings = {}
    for task in (key for key in runs[0] if all(key in run for run in runs)):
        flat = [flattened(run[task]) for run in runs]
        for key in dict.fromkeys(key for settings in flat for key in settings):
            values = tuple(settings.get(key) for settings in flat)
            if any(value != values[0] for value in values):
                differing.setdefault(key, values)
    return dict(sorted(differing.items()))


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key, without those that only name the task or its size."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if not prefix and key in TASK_KEYS:
            continue
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
