"""How many demonstrations a context should have, by scores on a dev split, and what that choice is worth elsewhere.

EPIC (*Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders*, appendix B.1) switches
demonstrations off for data sets where they do not help, which chooses on the data that is reported. Here all three are
said: all demonstrations, none, and as many as a dev split chooses.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from embrew.evaluation import evaluate
from embrew.evaluation.dev import dev_sets, dev_task
from embrew.evaluation.find import find_task
from embrew.evaluation.rows import split_names
from embrew.evaluation.tables import label_of
from embrew.evaluation.task import Task
from embrew.evaluation.task_texts import TRIED, check_apart
from embrew.modeling.encoder import Encoder
from embrew.modeling.prompting.contexts import Context
from embrew.recipe import DevRows


@dataclass(frozen=True)
class Choice:
    """Scores by number of demonstrations.

    Attributes:
        dev: mean score on the dev splits, by number of demonstrations; these alone decide.
        test: the same on the test splits (or `tests`), of none, all and the chosen number; empty where there are none.
        chosen: the number with the best dev score, the smallest of equals.
        dev_sets: name, split and size of what decided.
        test_sets: the same of what the choice was then judged on.
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
        encoder: reads demonstrations; its own contexts stay as they are.
        context: with all demonstrations that there are.
        counts: numbers to try; none (0) and the largest are always among them.
        data: folders with a dev split, or files; see `dev_sets`. Scores are their mean.
        tests: what the choice is then judged on; without, the test splits of `data`, where all have one.
        from_train: choose on this number of training rows of each folder, without texts of its test split and without
            the demonstrations, in place of its dev split.
        batch_tokens: padded tokens a batch.

    Raises:
        ValueError: a number larger than the number of demonstrations; a folder without a dev split;
            demonstrations that stand in the rows that choose or judge.
    """
    most = max(counts, default=0)
    if not 0 < most <= len(context.demonstrations):
        raise ValueError(f"counts up to {most} for {len(context.demonstrations)} demonstrations; give 1 to as many")
    if from_train is None:
        tasks: Sequence[Task] = dev_sets(data).dev
    else:
        shown = [text for pair in context.demonstrations for text in (pair.query, pair.passage)]
        rows = [DevRows(path=str(folder), rows=from_train) for folder in data]
        tasks = [dev_task(one, left_out=shown) for one in rows]
    if tests is None:
        with_test = [task for task in tasks if task.path.is_dir() and "test" in split_names(task.path)]
        found = [find_task(task.path, split="test", name=task.name) for task in with_test]
        tests = found if len(found) == len(tasks) else []
    check_apart([pair.query for pair in context.demonstrations], (*tasks, *tests))
    sets: dict[int, tuple[str, ...]] = {}

    def score(count: int, on: Sequence[Task], judged: _DocumentsOnce) -> float:
        kept = encoder.contexts
        encoder.contexts = dict(kept)
        try:
            encoder.add_context(TRIED, replace(context, demonstrations=context.demonstrations[:count]))
            results = evaluate(judged, list(on), context=TRIED, batch_tokens=batch_tokens)
        finally:
            encoder.contexts = kept
        sets[id(on)] = tuple(label_of(result) for result in results)
        return statistics.fmean(result.main_score for result in results)

    with TemporaryDirectory() as folder:
        judged = _DocumentsOnce(encoder, Path(folder))
        dev = {count: score(count, tasks, judged) for count in sorted({0, *counts})}
        chosen = max(dev, key=lambda count: (dev[count], -count))
        test = {count: score(count, tests, judged) for count in sorted({0, chosen, most})} if tests else {}
    return Choice(dev, test, chosen, sets[id(tasks)], sets.get(id(tests), ()))


class _DocumentsOnce:
    """`encoder`, whose vectors of documents are made once and kept in a folder: no context stands before them."""

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        self._encoder, self._folder = encoder, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_document(self, inputs: Sequence[str], **options: Any) -> np.ndarray:
        """Vectors of documents."""
        asked = json.dumps([list(inputs), sorted(options.items())], default=str)
        file = self._folder / f"{hashlib.sha256(asked.encode()).hexdigest()}.npy"
        if not file.exists():
            np.save(file, self._encoder.encode_document(inputs, **options))
        vectors: np.ndarray = np.load(file)
        return vectors


def read_counts(words: str) -> list[int]:
    """Numbers as on the command line.

    >>> read_counts("0..3"), read_counts("1,2,5")
    ([0, 1, 2, 3], [1, 2, 5])
    """
    span = re.fullmatch(r"(\d+)\.\.(\d+)", words)
    if span:
        return list(range(int(span[1]), int(span[2]) + 1))
    if not re.fullmatch(r"\d+(,\d+)*", words):
        raise ValueError(f"{words!r} is no list of numbers; write 0..8, or 0,2,5")
    return [int(number) for number in words.split(",")]
