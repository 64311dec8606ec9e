"""Scores, time and tokens by number of demonstrations, and the choice of that number on a dev split.

For the first n demonstrations of a context:

    score(n)  = mean over the tasks of the main score
    time(n)   = median over the rounds of the seconds of `encode`, per text
    tokens(n) = mean over the texts of the positions of a row, demonstrations included

Source: *Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders* (EPIC), Fig. 3, which compares
demonstrations as vectors with demonstrations as text by these figures and by the seconds of training. EPIC (appendix
B.1) switches demonstrations off for data sets on which they do not help, which selects on the reported data. Here three
scores are reported: with all demonstrations, with none, and with the number that a dev split chooses.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import timeit
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from embrew.encoder import Encoder
from embrew.evaluation import Result, evaluate
from embrew.evaluation.dev import dev_sets, dev_task
from embrew.evaluation.find import find_task
from embrew.evaluation.overlap import TRIAL_CONTEXT, check_demonstrations, task_texts
from embrew.evaluation.results import label_of, mean_score
from embrew.evaluation.rows import split_names
from embrew.evaluation.task import Task
from embrew.files import formats
from embrew.files.reading import read_json
from embrew.model.contexts import Context
from embrew.ranking import sample_in_order
from embrew.recipe import DevRows

SAMPLE, ROUNDS = 64, 3  # number of texts that are timed, and of rounds


@dataclass(frozen=True)
class DemonstrationCost:
    """Score, time and tokens of an encoder with a number of demonstrations.

    Attributes:
        count: number of demonstrations.
        score: mean of the main scores over the tasks, 0 to 1.
        milliseconds: median time to encode one text of the first task, its queries where it has them.
        tokens: mean number of positions of these texts with their demonstrations.
    """

    count: int
    score: float
    milliseconds: float
    tokens: float


def by_demonstrations(
    encoder: Encoder, context: Context, counts: Sequence[int], tasks: Sequence[Task], *, batch_tokens: int | None = None
) -> list[DemonstrationCost]:
    """Score and time a context with its first demonstrations, by their number; the encoder's contexts are unchanged.

    Raises:
        ValueError: a number larger than that of the demonstrations, or one of them is a text of a task.
    """
    available = len(context.demonstrations)
    if not counts or max(counts) > available:
        raise ValueError(
            f"counts={','.join(map(str, counts))}; the file has {available} demonstrations: give 0 to {available}"
        )
    check_demonstrations([pair.query for pair in context.demonstrations], tasks)
    texts = sample_in_order(list(dict.fromkeys(next(task_texts(tasks[0]))[1])), SAMPLE, seed=42)
    variant, limit = encoder.with_settings(), encoder.max_length["query"]
    costs: list[DemonstrationCost] = []
    variant.contexts = {}
    for count in sorted(set(counts)):
        prepared = variant.add_context(TRIAL_CONTEXT, replace(context, demonstrations=context.demonstrations[:count]))
        results = evaluate(variant, list(tasks), context=TRIAL_CONTEXT, batch_tokens=batch_tokens)
        rows = variant.rows_by_text(texts, prepared.context.instruction, prepared, limit)
        encode = partial(variant.encode, texts, TRIAL_CONTEXT, batch_tokens=batch_tokens, max_length=limit)
        seconds = timeit.repeat(encode, number=1, repeat=ROUNDS)
        milliseconds = 1000 * statistics.median(seconds) / len(texts)
        tokens = statistics.fmean(len(row.ids) for (row,) in rows)
        costs.append(DemonstrationCost(count, mean_score(results), milliseconds, tokens))
    return costs


def training_seconds(folder: str | Path) -> float | None:
    """Return the seconds of all stages of a run, or of the run that a stage's folder belongs to; None: not known."""
    files = (parent / formats.RUN.file for parent in (Path(folder), Path(folder).parent))
    file = next((file for file in files if file.is_file()), None)
    return None if file is None else sum(read_json(file, keys=("seconds",), kind=formats.RUN)["seconds"].values())


@dataclass(frozen=True)
class CountChoice:
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
) -> CountChoice:
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
    return CountChoice(dev, test, chosen, *labels)


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
