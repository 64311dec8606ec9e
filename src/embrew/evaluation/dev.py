"""The dev and guard sets of a recipe: names, texts, and scores of an encoder on them."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from embrew import evaluation
from embrew.data.reading import DEV_SPLITS, SPLITS, expand, known_split, stem, without_number, words
from embrew.data.sets import fetch_hint
from embrew.evaluation.find import find_task
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.overlap import Overlap, count_overlaps, hash_texts, overlap_lines, reserved_texts, task_texts
from embrew.evaluation.results import size_of
from embrew.evaluation.rows import split_names
from embrew.evaluation.task import DevPart, Task
from embrew.files.checksums import content_hash
from embrew.files.formats import GAP, GAP_OTHER, GUARD
from embrew.progress import is_chosen
from embrew.recipe import DevRows, Recipe
from embrew.text_encoder import TextEncoder

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset

logger = logging.getLogger(__name__)
RESERVED = ("dev", "guard", GAP, GAP_OTHER)
FILE = "file"  # split of a file whose name contains none
Data = str | Path | DevRows


@dataclass(frozen=True)
class DevSets:
    """Scores an encoder on dev and guard sets; made by `dev_sets`.

    Attributes:
        dev: sets to choose a step, a setting or a number of demonstrations by; never a test split.
        guard: sets that are only reported.
        batch_tokens: padded tokens per batch.
        sizes: size of each set by the name of its score, such as `1379 pairs`; known after the first evaluation.
    """

    dev: tuple[Task, ...]
    guard: tuple[Task, ...] = ()
    batch_tokens: int = 8192
    sizes: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def metrics(self) -> list[str]:
        """Names of the scores that a best step can be chosen by."""
        return ["dev", *(task.name for task in self.dev)]

    @property
    def reserved(self) -> list[str]:
        """Texts of dev rows that are split off training rows, which may not be trained on."""
        return [text for task in self.dev for text in reserved_texts(task)]

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split, metric and sha256 of each set by the name of its score, and its size once it is known."""
        about = {}
        for name, task in self._named().items():
            size = {"size": self.sizes[name]} if name in self.sizes else {}
            facts = {"kind": task.kind, "split": task.split_label, "metric": KINDS[task.kind].metric}
            about[name] = {**facts, "sha256": self._content_hashes[name], **size}
        return about

    @cached_property
    def _content_hashes(self) -> dict[str, str]:
        return {name: content_hash(task.files) for name, task in self._named().items()}

    def __call__(self, encoder: TextEncoder) -> dict[str, float]:
        """Return `dev`, the mean over the dev sets, and each set's score; `guard` and `guard/NAME` likewise."""
        named = self._named()
        results = evaluation.evaluate(
            encoder, list(named.values()), batch_tokens=self.batch_tokens, show_progress_bar=is_chosen()
        )
        self.sizes.update(zip(named, (size_of(result.counts) for result in results), strict=True))
        each = dict(zip(named, (result.main_score for result in results), strict=True))
        dev = {task.name: each.pop(task.name) for task in self.dev}
        guard = {"guard": statistics.fmean(each.values()), **each} if each else {}
        return {"dev": statistics.fmean(dev.values()), **dev, **guard}

    def texts(self) -> dict[str, Iterator[str]]:
        """Return the texts of each set by name, read lazily; queries and documents are separate entries."""
        return dict(chain.from_iterable(task_texts(task) for task in (*self.dev, *self.guard)))

    def overlap(self, stage: str, data: str, rows: Dataset) -> dict[str, Overlap]:
        """Return, and log, how many of a stage's training rows of a data set hold a text of each set."""
        overlaps = count_overlaps(rows, self._text_hashes)
        for line in overlap_lines(data, len(rows), overlaps):
            logger.info("%s  overlap: %s", stage, line)
        return overlaps

    @cached_property
    def _text_hashes(self) -> dict[str, np.ndarray]:
        return hash_texts(self.texts())

    def _named(self) -> dict[str, Task]:
        return {task.name: task for task in self.dev} | {GUARD + task.name: task for task in self.guard}


def dev_sets(
    dev: Sequence[Data], guard: Sequence[str | Path] = (), *, metric: str = "dev", batch_tokens: int = 8192
) -> DevSets:
    """Return the dev and guard sets of folders and files; raise on mistakes before any model is opened.

    A dev set is a folder's dev (validation, valid) split, a file without `test` or `train` as a word of its name, or
    rows that are split off a folder's training rows (`DevRows`). A test split is refused, since models are chosen by
    dev sets. Guard sets are only reported; the dev split is used if a folder has several splits.

    Raises:
        FileNotFoundError: a folder or file does not exist.
        ValueError: a dev set has no dev split, two sets have the same name, or `metric` is none of the scores.
    """
    sets = DevSets(tuple(map(dev_task, dev)), tuple(map(_guard_task, guard)), batch_tokens)
    names = [task.name for task in (*sets.dev, *sets.guard)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two dev or guard sets are called {name}; rename a folder, or leave one out")
    if reserved := {GAP, GAP_OTHER}.intersection(names[: len(sets.dev)]):
        raise ValueError(
            f"a dev set is called {reserved.pop()}, a name that the share of the gap closed has; rename its folder"
        )
    if metric not in (*sets.metrics, GAP):
        raise ValueError(f"evaluation.metric={metric!r} is not a score; choose from {', '.join(sets.metrics)}")
    return sets


def dev_sets_of(recipe: Recipe) -> DevSets | None:
    """Return the sets of a recipe's `evaluation`, or None if it has none; errors as `dev_sets`."""
    config = recipe.evaluation
    if config is None:
        return None
    return dev_sets(config.dev, config.guard, metric=config.metric, batch_tokens=config.batch_tokens)


def dev_task(data: Data, *, left_out: Iterable[str] = ()) -> Task:
    """Return the task of a dev set.

    Args:
        data: a folder, a file, or a number of a folder's training rows.
        left_out: texts that these training rows may not contain.

    Raises:
        FileNotFoundError: it does not exist.
        ValueError: it has no dev split.
    """
    if isinstance(data, DevRows):
        source = Path(expand(data.path))
        if source.is_file():
            raise ValueError(
                f"{source} is a file; give a data folder, whose training rows rows={data.rows} are split off"
            )
        if source.exists() and "train" not in split_names(source):
            there = ", ".join(split_names(source)) or "none"
            raise ValueError(f"{source} has no train split to split rows={data.rows} off; it has {there}")
        part = DevPart(data.rows, data.seed, tuple(left_out))
        return find_task(data.path, split="train", part=part)
    source = Path(expand(data))
    if source.is_file():
        split = _split_of(source)
        if split in ("train", "test"):
            raise ValueError(
                f"{source} is a {split} split by its name. {_advice(source.parent)}; or rename a file of dev rows"
            )
        return find_task(data, split=split, name=_name_of(source))
    if not source.exists():
        raise FileNotFoundError(f"no data folder {source}{fetch_hint(source)}")
    has = split_names(source)
    split = next((split for split in DEV_SPLITS if split in has), "")
    if not split:
        raise ValueError(f"{source} has no dev split; it has {', '.join(has) or 'none'}. {_advice(source)}")
    return find_task(data, split=split)


def _guard_task(path: str | Path) -> Task:
    source = Path(expand(path))
    if source.is_file():
        return find_task(path, split=_split_of(source), name=_name_of(source))
    has = split_names(source) if source.exists() else []
    return find_task(path, split=next((split for split in DEV_SPLITS if split in has), None))


def _advice(folder: Path) -> str:
    advice = "Nothing is chosen on a test split: give a folder with a dev (validation, valid) split"
    if folder.is_dir() and "train" in split_names(folder):
        advice += f", or split rows off its training rows: {{path: {folder}, rows: N}} in a recipe, --dev-from-train N"
    return advice


def _split_of(file: Path) -> str:
    """Return the split in a file's name, as in `dev.jsonl` or `test-00000.jsonl.gz`; `file` for any other name.

    Test and training splits are recognised by a word of the name: `sts-test`, `TEST_1`, `stsTest`, but not `latest`.
    """
    splits = {*words(stem(file))} & {*SPLITS}
    named = known_split(without_number(stem(file)))
    return named or next((split for split in ("test", "train") if split in splits), FILE)


def _name_of(file: Path) -> str | None:
    """Return a task name for a file that is only called after its split; None for other files."""
    return f"{file.resolve().parent.name}-{stem(file)}" if stem(file) in (*RESERVED, *SPLITS) else None
