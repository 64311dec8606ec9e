"""Summarisation: correlation of a machine summary's cosine with human summaries and its human grade."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.evaluation.kinds.sts import spearman
from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import Columns, Evaluate, Task, TaskKind
from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import unit_vectors

logger = logging.getLogger(__name__)


def prepare(task: Task, *, columns: Columns = None) -> Evaluate:
    """Read texts with people's and machines' summaries, to evaluate encoders on them."""
    rows = task_rows(task, SUMMARIZATION, columns)
    human, machine, relevance = (list(rows[name]) for name in ("human_summaries", "machine_summaries", "relevance"))
    counts = {"texts": len(human), "summaries": sum(map(len, machine))}
    return lambda encoder, options: (evaluate_summarization(encoder, human, machine, relevance, **options), counts)


def evaluate_summarization(
    encoder: TextEncoder,
    human: Sequence[Sequence[str]],
    machine: Sequence[Sequence[str]],
    relevance: Sequence[Sequence[float]],
    **options: Any,
) -> dict[str, Any]:
    """Return Spearman's correlation of largest cosine to a human summary with grade, mean over texts (SummEval).

    Texts whose grades are all equal have no correlation; they are excluded and counted.
    """
    for number, (people, machines, grades) in enumerate(zip(human, machine, relevance, strict=True), start=1):
        if not people or len(machines) != len(grades):
            raise ValueError(
                f"text {number}: {len(people)} human summaries, {len(machines)} machine summaries and {len(grades)} "
                "grades; give at least one human summary, and a grade for each machine summary"
            )
    texts = list(dict.fromkeys(text for side in (human, machine) for group in side for text in group))
    position = {text: i for i, text in enumerate(texts)}
    vectors = unit_vectors(encoder.encode(texts, **options), what="summaries", texts=texts)
    correlations = []
    for number, (people, machines, grades) in enumerate(zip(human, machine, relevance, strict=True), start=1):
        if len(set(grades)) < 2:
            continue
        cosines = vectors[[position[text] for text in machines]] @ vectors[[position[text] for text in people]].T
        correlations.append(spearman(cosines.max(axis=1), np.asarray(grades), what=f"text {number}"))
    if not correlations:
        raise ValueError("no text has machine summaries of different grades; check the column relevance")
    left_out = len(human) - len(correlations)
    if left_out:
        logger.warning("%d texts have machine summaries of one grade only and are excluded", left_out)
    mean = float(np.mean(correlations))
    examples = {"score": correlations}
    return {"main_score": mean, "cosine_spearman": mean, "texts_left_out": left_out, "examples": examples}


SUMMARIZATION = TaskKind(
    name="summarization",
    metric="Spearman",
    prepare=prepare,
    rows="summaries",
    about=("text",),
    other=("human_summaries", "machine_summaries"),
    columns=frozenset({"text", "human_summaries", "machine_summaries", "relevance"}),
    mteb_types=("Summarization",),
)
