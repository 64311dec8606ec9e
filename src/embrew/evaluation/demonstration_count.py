"""Choose the number of demonstrations of a context by scores on a dev split, and score that choice on test splits.

EPIC (*Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders*, appendix B.1) switches
demonstrations off for data sets on which they do not help, which selects on the reported data. Here three scores are
reported: with all demonstrations, with none, and with the number that a dev split chooses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from embrew.encoder import Encoder
from embrew.evaluation import Result, evaluate
from embrew.evaluation.dev import dev_sets, dev_task
from embrew.evaluation.find import find_task
from embrew.evaluation.report import label_of, mean_score
from embrew.evaluation.rows import split_names
from embrew.evaluation.task import Task
from embrew.evaluation.task_texts import TRIAL_CONTEXT, check_demonstrations
from embrew.model.contexts import Context
from embrew.recipe import DevRows


@dataclass(frozen=True)
class Choice:
    """Scores by number of demonstrations.

    Attributes:
        dev: mean score on the dev splits by number of demonstrations; only these decide.
        test: the same on the test splits (or `tests`), for none, all and the chosen number; empty without test splits.
        chosen: the number with the best dev score; the smallest of several.
        dev_sets: name, split and size of the dev sets.
        test_sets: the same of the test sets.
    """

    dev: dict[int, float]
    test: dict[int, float]
    chosen: int
    dev_sets: tuple[str, ...] = ()
    test_sets: tuple[str, ...] = ()


def choose_demonstrations(
    encoder: Encoder,
    context: Context,
    counts: Sequence[int],
    data: Sequence[str | Path],
    *,
    tests: Sequence[Task] | None = None,
    from_train: int | None = None,
    batch_tokens: int | None = None,
) -> Choice:
    """Score a context with its first N demonstrations on dev splits.

    Args:
        encoder: an encoder that reads demonstrations; its own contexts are left unchanged.
        context: a context with all available demonstrations.
        counts: numbers to try; 0 and the largest are always tried.
        data: folders with a dev split, or files (see `dev_sets`); the score is the mean over them.
        tests: tasks to score the choice on; default: the test splits of `data`, if all have one.
        from_train: choose on this number of training rows of each folder instead of its dev split; rows with texts of
            its test split or with demonstrations are excluded.
        batch_tokens: padded tokens per batch.

    Raises:
        ValueError: a number larger than the number of demonstrations; a folder without a dev split;
            demonstrations that are rows of a dev or test set.
    """
    maximum, there = max(counts, default=0), len(context.demonstrations)
    if not 0 < maximum <= there:
        raise ValueError(
            f"counts up to {maximum}, but the context has {there} demonstrations; give numbers from 0 to that"
        )
    if from_train is None:
        tasks: Sequence[Task] = dev_sets(data).dev
    else:  # rows that hold no text of a demonstration
        demonstrated = [text for pair in context.demonstrations for text in (pair.query, pair.passage)]
        tasks = [dev_task(DevRows(path=str(folder), rows=from_train), left_out=demonstrated) for folder in data]
    if tests is None:
        tested = [task for task in tasks if task.path.is_dir() and "test" in split_names(task.path)]
        all_tested = len(tested) == len(tasks)
        tests = [find_task(task.path, split="test", name=task.name) for task in tested] if all_tested else []
    check_demonstrations([pair.query for pair in context.demonstrations], (*tasks, *tests))
    with TemporaryDirectory() as folder:
        cached = _CachedDocuments(encoder.with_settings(), Path(folder))
        cached.encoder.contexts = {}
        on_dev = {count: _results(cached, context, count, tasks, batch_tokens) for count in sorted({0, *counts})}
        dev = {count: mean_score(results) for count, results in on_dev.items()}
        chosen = max(dev, key=lambda count: (dev[count], -count))
        on_test = {n: _results(cached, context, n, tests, batch_tokens) for n in sorted({0, chosen, maximum}) if tests}
    test = {count: mean_score(results) for count, results in on_test.items()}
    labels = [tuple(label_of(result) for result in on.get(0, ())) for on in (on_dev, on_test)]
    return Choice(dev, test, chosen, *labels)


def _results(
    cached: _CachedDocuments, context: Context, count: int, tasks: Sequence[Task], batch_tokens: int | None
) -> list[Result]:
    """Return the results of the encoder with the first `count` demonstrations."""
    cached.encoder.add_context(TRIAL_CONTEXT, replace(context, demonstrations=context.demonstrations[:count]))
    return evaluate(cached, list(tasks), context=TRIAL_CONTEXT, batch_tokens=batch_tokens)


class _CachedDocuments:
    """`encoder` with document vectors cached in a folder, since contexts are not a prefix of documents."""

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        self.encoder, self._folder = encoder, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def encode_document(self, inputs: Sequence[str], **options: Any) -> np.ndarray:
        """Return vectors of documents, from the cache if they are there."""
        texts = json.dumps([list(inputs), sorted(options.items())], default=str)
        file = self._folder / f"{hashlib.sha256(texts.encode()).hexdigest()}.npy"
        if not file.exists():
            np.save(file, self.encoder.encode_document(inputs, **options))
        return np.asarray(np.load(file))
