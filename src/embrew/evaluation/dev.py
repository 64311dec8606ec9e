"""The dev and guard sets of a recipe: names, scores of an encoder, and the texts they consist of."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from embrew import evaluation
from embrew.data.reading import SPLITS, expand, stem
from embrew.evaluation.find import find_task
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.report import size_of
from embrew.evaluation.rows import split_names
from embrew.evaluation.task import Part, Task
from embrew.evaluation.task_texts import reserved_texts, task_texts
from embrew.files.formats import GUARD
from embrew.progress import is_chosen
from embrew.recipe import DevRows, Recipe
from embrew.text_encoder.interface import TextEncoder

RESERVED = ("dev", "guard")
DEV = ("dev", "validation", "valid")
FILE = "file"  # the split of a file that is named after none
Given = str | Path | DevRows


@dataclass(frozen=True)
class DevSets:
    """Scores an encoder on dev and guard sets; made by `dev_sets`.

    Attributes:
        dev: what a step, a setting or a number of demonstrations may be chosen by; never a test split.
        guard: what is only reported.
        batch_tokens: padded tokens a batch.
        sizes: how much each set holds, by the name of its score; known once it has been scored.
    """

    dev: tuple[Task, ...]
    guard: tuple[Task, ...] = ()
    batch_tokens: int = 8192
    sizes: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def metrics(self) -> list[str]:
        """The scores that a best step can be chosen by."""
        return ["dev", *(task.name for task in self.dev)]

    @property
    def reserved(self) -> list[str]:
        """Texts that may not be trained on, since dev rows were split off training rows."""
        return [text for task in self.dev for text in reserved_texts(task)]

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split, size and metric of each set, by the name of its score; the size once it is known."""
        found = {}
        for name, task in self._named():
            size = {"size": self.sizes[name]} if name in self.sizes else {}
            found[name] = {"kind": task.kind, "split": task.shown_split, "metric": KINDS[task.kind].metric, **size}
        return found

    def __call__(self, encoder: TextEncoder) -> dict[str, float]:
        """`dev`, the mean of the dev sets, and each of them; with guard sets, `guard` and `guard/NAME`."""
        results = evaluation.evaluate(
            encoder, [*self.dev, *self.guard], batch_tokens=self.batch_tokens, show_progress_bar=is_chosen()
        )
        for (name, _), result in zip(self._named(), results, strict=True):
            self.sizes[name] = size_of(result.counts)
        found = [result.main_score for result in results]
        dev, guard = found[: len(self.dev)], found[len(self.dev) :]
        scores = {"dev": statistics.fmean(dev)}
        scores |= {task.name: score for task, score in zip(self.dev, dev, strict=True)}
        if guard:
            scores["guard"] = statistics.fmean(guard)
            scores |= {GUARD + task.name: score for task, score in zip(self.guard, guard, strict=True)}
        return scores

    def texts(self) -> dict[str, Iterator[str]]:
        """The texts of each set, read when asked for; queries and documents apart."""
        return dict(chain.from_iterable(task_texts(task) for task in (*self.dev, *self.guard)))

    def _named(self) -> list[tuple[str, Task]]:
        return [*((task.name, task) for task in self.dev), *((GUARD + task.name, task) for task in self.guard)]


def dev_sets(
    dev: Sequence[Given], guard: Sequence[str | Path] = (), *, metric: str = "dev", batch_tokens: int = 8192
) -> DevSets:
    """The sets of these folders and files, looked at before any model is opened.

    A dev set is a folder's dev (validation, valid) split, a file without `test` or `train` as a word of its name, or
    rows that are split off a folder's training rows (`DevRows`). A test split is refused: a model may be chosen by dev
    sets. Guard sets are only reported; of a folder with several splits the dev split is taken.

    Raises:
        FileNotFoundError: one is not there.
        ValueError: a dev set has no dev split; two sets have one name; `metric` is neither `dev` nor a dev set's name.
    """
    found = DevSets(tuple(map(dev_task, dev)), tuple(map(_guard_task, guard)), batch_tokens)
    names = [task.name for task in (*found.dev, *found.guard)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two dev or guard sets are called {name}; rename a folder, or leave one out")
    if metric not in found.metrics:
        raise ValueError(f"evaluation.metric={metric!r} is no score; choose from {', '.join(found.metrics)}")
    return found


def dev_sets_of(recipe: Recipe) -> DevSets | None:
    """The sets that a recipe's `evaluation` names, or None where it has none; errors as `dev_sets`."""
    found = recipe.evaluation
    if found is None:
        return None
    return dev_sets(found.dev, found.guard, metric=found.metric, batch_tokens=found.batch_tokens)


def dev_task(given: Given, *, left_out: Iterable[str] = ()) -> Task:
    """The task of a dev set.

    Args:
        given: a folder, a file, or rows of a folder's training rows.
        left_out: texts that such rows may not hold.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it has no dev split.
    """
    if isinstance(given, DevRows):
        place = Path(expand(given.path))
        if place.is_file():
            raise ValueError(f"{place} is a file; rows={given.rows} are split off a data folder's training rows")
        if place.exists() and "train" not in split_names(place):
            there = ", ".join(split_names(place)) or "none"
            raise ValueError(f"{place} has no train split to split rows={given.rows} off; it has {there}")
        part = Part(given.rows, given.seed, tuple(left_out))
        return find_task(given.path, split="train", part=part)
    place = Path(expand(given))
    if place.is_file():
        split = _split_of(place)
        if split in ("train", "test"):
            raise ValueError(f"{place} is a {split} split, by its name; {_advice(place.parent)}; or rename a dev file")
        return find_task(given, split=split, name=_name_of(place))
    if not place.exists():
        raise FileNotFoundError(f"no data folder {place}")
    has = split_names(place)
    split = next((split for split in DEV if split in has), "")
    if not split:
        raise ValueError(f"{place} has no dev split; it has {', '.join(has) or 'none'}. {_advice(place)}")
    return find_task(given, split=split)


def _guard_task(path: str | Path) -> Task:
    place = Path(expand(path))
    if place.is_file():
        return find_task(path, split=_split_of(place), name=_name_of(place))
    has = split_names(place) if place.exists() else []
    return find_task(path, split=next((split for split in DEV if split in has), None))


def _advice(folder: Path) -> str:
    said = "Nothing is chosen on a test split: give a folder with a dev (validation, valid) split"
    if folder.is_dir() and "train" in split_names(folder):
        said += f", or split rows off its training rows: {{path: {folder}, rows: N}} in a recipe, --dev-from-train N"
    return said


def _split_of(file: Path) -> str:
    """The split that a file is named after: `dev.jsonl`, `test-00000.jsonl.gz`; of any other name, `file`.

    For test and training splits a word of the name is enough: `sts-test`, `TEST_1`, `stsTest`, but not `latest`.
    """
    named = re.sub(r"-\d+(-of-\d+)?$", "", stem(file))
    if named in SPLITS:
        return named
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", stem(file))]
    return next((split for split in ("test", "train") if split in words), FILE)


def _name_of(file: Path) -> str | None:
    """A name for a file called after its split, which is no name."""
    return f"{file.resolve().parent.name}-{stem(file)}" if stem(file) in (*RESERVED, *SPLITS) else None
