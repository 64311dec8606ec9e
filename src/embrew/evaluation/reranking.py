"""Reranking: the order of each query's own candidates by cosine (mean average precision)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import unit_vectors


def evaluate_reranking(
    encoder: TextEncoder,
    queries: Sequence[str],
    positives: Sequence[Sequence[str]],
    negatives: Sequence[Sequence[str]],
    **options: Any,
) -> dict[str, Any]:
    """MAP (the main score) and MRR@10 over queries; candidates with equal scores rank by their text."""
    for number, (positive, negative) in enumerate(zip(positives, negatives, strict=True), start=1):
        if not positive or not negative:
            raise ValueError(f"query {number} has {len(positive)} positives, {len(negative)} negatives; give both")
    documents = sorted({text for side in (positives, negatives) for texts in side for text in texts})
    place = {text: i for i, text in enumerate(documents)}
    query_vectors = unit_vectors(encoder.encode_query(list(queries), **options), what="queries", texts=queries)
    vectors = unit_vectors(encoder.encode_document(documents, **options), what="candidates", texts=documents)
    precisions, reciprocals = [], []
    for query, positive, negative in zip(query_vectors, positives, negatives, strict=True):
        relevant = {place[text] for text in positive}
        candidates = sorted(relevant | {place[text] for text in negative})  # alphabetical: ties know no label
        scores = vectors[candidates] @ query
        ranked = [candidates[i] for i in np.argsort(-scores, kind="stable")]
        ranks = [rank for rank, candidate in enumerate(ranked, start=1) if candidate in relevant]
        precisions.append(float(np.mean([found / rank for found, rank in enumerate(ranks, start=1)])))
        reciprocals.append(1 / ranks[0] if ranks[0] <= 10 else 0.0)
    mean = float(np.mean(precisions))
    examples = {"score": precisions}
    return {"main_score": mean, "map": mean, "mrr_at_10": float(np.mean(reciprocals)), "examples": examples}
