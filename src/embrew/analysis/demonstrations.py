"""Scores, time and tokens by number of demonstrations.

For the first n demonstrations of a context:

    score(n)  = mean over the tasks of the main score
    time(n)   = median over the rounds of the seconds of `encode`, per text
    tokens(n) = mean over the texts of the positions of a row, demonstrations included

Source: *Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders* (EPIC), Fig. 3, which compares
demonstrations as vectors with demonstrations as text by these figures and by the seconds of training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embrew.encoder import Encoder
from embrew.evaluation import evaluate
from embrew.evaluation.report import mean_score
from embrew.evaluation.task import Task
from embrew.evaluation.task_texts import TRIAL_CONTEXT, check_demonstrations, task_texts
from embrew.files import formats
from embrew.files.reading import read_json
from embrew.model.contexts import Context
from embrew.ranking import sample_in_order

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
        seconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            variant.encode(texts, prompt_name=TRIAL_CONTEXT, batch_tokens=batch_tokens, max_length=limit)
            seconds.append(time.perf_counter() - start)
        milliseconds = 1000 * statistics.median(seconds) / len(texts)
        tokens = statistics.fmean(len(row.ids) for (row,) in rows)
        costs.append(DemonstrationCost(count, mean_score(results), milliseconds, tokens))
    return costs


def training_seconds(folder: str | Path) -> float | None:
    """Return the seconds of all stages of a run, or of the run that a stage's folder belongs to; None: not known."""
    files = (parent / formats.RUN.file for parent in (Path(folder), Path(folder).parent))
    file = next((file for file in files if file.is_file()), None)
    return None if file is None else sum(read_json(file, keys=("seconds",), kind=formats.RUN)["seconds"].values())
