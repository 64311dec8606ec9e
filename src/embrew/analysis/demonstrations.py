"""What demonstrations cost and give: scores, time and tokens by their number.

*Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders* (EPIC), Fig. 3, compares demonstrations
as vectors with demonstrations as text: scores, training time, time per text, and tokens per text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embrew.encoder import Encoder
from embrew.encoding import rows_by_text
from embrew.evaluation import evaluate
from embrew.evaluation.report import mean_score
from embrew.evaluation.task import Task
from embrew.evaluation.task_texts import TRIAL_CONTEXT, check_demonstrations, task_texts
from embrew.files import formats
from embrew.files.reading import read_json
from embrew.model.contexts import Context
from embrew.sampling import sample_in_order

SAMPLE, ROUNDS = 64, 3  # texts that are timed, and how often


@dataclass(frozen=True)
class Shots:
    """An encoder with a number of demonstrations.

    Attributes:
        count: the number.
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
) -> list[Shots]:
    """Score and time a context with its first demonstrations, by their number; the encoder's contexts are unchanged.

    Raises:
        ValueError: a number larger than that of the demonstrations, or one of them is a text of a task.
    """
    there = len(context.demonstrations)
    if not counts or max(counts) > there:
        raise ValueError(f"counts={','.join(map(str, counts))}; the file has {there} demonstrations: give 0 to {there}")
    check_demonstrations([pair.query for pair in context.demonstrations], tasks)
    texts = sample_in_order(list(dict.fromkeys(next(task_texts(tasks[0]))[1])), SAMPLE, seed=42)
    trying, limit, found = encoder.with_settings(), encoder.max_length["query"], []
    trying.contexts = {}
    for count in sorted(set(counts)):
        prepared = trying.add_context(TRIAL_CONTEXT, replace(context, demonstrations=context.demonstrations[:count]))
        results = evaluate(trying, list(tasks), context=TRIAL_CONTEXT, batch_tokens=batch_tokens)
        rows = rows_by_text(trying, texts, prepared.context.instruction, prepared, limit)
        seconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            trying.encode(texts, prompt_name=TRIAL_CONTEXT, batch_tokens=batch_tokens, max_length=limit)
            seconds.append(time.perf_counter() - start)
        length = statistics.fmean(len(row.ids) for (row,) in rows)
        found.append(Shots(count, mean_score(results), 1000 * statistics.median(seconds) / len(texts), length))
    return found


def training_seconds(folder: str | Path) -> float | None:
    """Return the seconds of all stages of a run, or of the run that a stage's folder belongs to; None: not known."""
    place = Path(folder)
    files = [one / formats.RUN.file for one in (place, place.parent) if (one / formats.RUN.file).is_file()]
    return sum(read_json(files[0], keys=("seconds",), kind=formats.RUN)["seconds"].values()) if files else None
