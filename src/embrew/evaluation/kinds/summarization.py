"""Summarisation: correlation of a machine summary's cosine with human summaries and its human grade."""

import logging
from typing import Any

import numpy as np

from embrew.evaluation.kinds.sts import spearman
from embrew.evaluation.task import Rows, TaskKind
from embrew.text_encoder import TextEncoder, unit_vectors

logger = logging.getLogger(__name__)


def score_summarization(encoder: TextEncoder, rows: Rows, **options: Any) -> dict[str, Any]:
    """Return Spearman's correlation of largest cosine to a human summary with grade, mean over texts (SummEval).

    Texts whose grades are all equal have no correlation; they are excluded and counted.
    """
    human, machine = rows["human_summaries"], rows["machine_summaries"]
    texts = list(dict.fromkeys(text for side in (human, machine) for group in side for text in group))
    position = {text: i for i, text in enumerate(texts)}
    for number, (people, machines, grades) in enumerate(zip(human, machine, rows["relevance"], strict=True), start=1):
        if not people or len(machines) != len(grades):
            raise ValueError(
                f"text {number}: {len(people)} human summaries, {len(machines)} machine summaries and {len(grades)} "
                "grades; give at least one human summary, and a grade for each machine summary"
            )
    vectors = unit_vectors(encoder.encode(texts, **options), what="summaries", texts=texts)
    correlations = []
    for number, (people, machines, grades) in enumerate(zip(human, machine, rows["relevance"], strict=True), start=1):
        if len(set(grades)) < 2:
            continue
        cosines = vectors[[position[text] for text in machines]] @ vectors[[position[text] for text in people]].T
        correlations.append(spearman(cosines.max(axis=1), np.asarray(grades), what=f"text {number}"))
    if not correlations:
        raise ValueError("no text has machine summaries of different grades; check the column relevance")
    excluded = len(human) - len(correlations)
    if excluded:
        logger.warning("%d texts have machine summaries of one grade only and are excluded", excluded)
    mean = float(np.mean(correlations))
    return {
        "main_score": mean,
        "cosine_spearman": mean,
        "texts_left_out": excluded,
        "counts": {"texts": len(human), "summaries": sum(map(len, machine))},
        "examples": {"score": correlations},
    }


SUMMARIZATION = TaskKind(
    name="summarization",
    metric="Spearman",
    score=score_summarization,
    rows="summaries",
    about=("text",),
    other=("human_summaries", "machine_summaries"),
    mteb_types=("Summarization",),
)
