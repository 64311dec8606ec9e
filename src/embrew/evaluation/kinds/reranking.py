"""Reranking: mean average precision of each query's own candidates, ranked by cosine."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.evaluation.kinds.retrieval import TOP
from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import Columns, Evaluate, Task, TaskKind
from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import unit_vectors


def prepare(task: Task, *, columns: Columns = None) -> Evaluate:
    """Read queries with their candidates, to evaluate encoders on them."""
    rows = task_rows(task, RERANKING, columns)
    queries, positives, negatives = (list(rows[name]) for name in ("query", "positive", "negative"))
    counts = {"queries": len(queries), "documents": sum(map(len, positives)) + sum(map(len, negatives))}
    return lambda encoder, options: (evaluate_reranking(encoder, queries, positives, negatives, **options), counts)


def evaluate_reranking(
    encoder: TextEncoder,
    queries: Sequence[str],
    positives: Sequence[Sequence[str]],
    negatives: Sequence[Sequence[str]],
    **options: Any,
) -> dict[str, Any]:
    """Return MAP (the main score) and MRR@10 over queries; candidates with equal scores rank by their text.

    In the examples, a query is called after its row, from 1, and a candidate after its position in the row:
    `positive 1`.
    """
    for number, (positive, negative) in enumerate(zip(positives, negatives, strict=True), start=1):
        if not positive or not negative:
            raise ValueError(f"query {number} has {len(positive)} positives, {len(negative)} negatives; give both")
    documents = sorted({text for side in (positives, negatives) for texts in side for text in texts})
    position = {text: i for i, text in enumerate(documents)}
    query_vectors = unit_vectors(encoder.encode_query(list(queries), **options), what="queries", texts=queries)
    vectors = unit_vectors(encoder.encode_document(documents, **options), what="candidates", texts=documents)
    precisions, ranks_of_first, top = [], [], []
    for query, positive, negative in zip(query_vectors, positives, negatives, strict=True):
        relevant = {position[text] for text in positive}
        candidates = sorted(
            relevant | {position[text] for text in negative}
        )  # in alphabetical order, so that ties do not depend on labels
        scores = vectors[candidates] @ query
        ranked = [candidates[i] for i in np.argsort(-scores, kind="stable")]
        ranks = [rank for rank, candidate in enumerate(ranked, start=1) if candidate in relevant]
        precisions.append(float(np.mean([found / rank for found, rank in enumerate(ranks, start=1)])))
        ranks_of_first.append(ranks[0])
        names = candidate_names(positive, negative)
        top.append([names[documents[candidate]] for candidate in ranked[:TOP]])
    mean = float(np.mean(precisions))
    reciprocal = float(np.mean([1 / rank if rank <= 10 else 0.0 for rank in ranks_of_first]))
    numbers = [str(number) for number in range(1, len(queries) + 1)]
    examples = {"score": precisions, "query": numbers, "top": top, "rank": ranks_of_first}
    return {"main_score": mean, "map": mean, "mrr_at_10": reciprocal, "examples": examples}


def candidate_names(positive: Sequence[str], negative: Sequence[str]) -> dict[str, str]:
    """Return names of a row's candidates by text, such as `positive 1`; a text in both lists is a positive."""
    names: dict[str, str] = {}
    for side, texts in (("positive", positive), ("negative", negative)):
        for number, text in enumerate(texts, start=1):
            names.setdefault(text, f"{side} {number}")
    return names


RERANKING = TaskKind(
    name="reranking",
    metric="MAP",
    prepare=prepare,
    rows="candidates",
    about=("query",),
    documents=("positive", "negative"),
    columns=frozenset({"query", "positive", "negative"}),
    lists=frozenset({"positive"}),
    mteb_types=("Reranking",),
)
