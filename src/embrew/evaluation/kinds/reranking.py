"""Reranking: mean average precision of each query's own candidates, ranked by cosine."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.evaluation.kinds.retrieval import SAVED_DEPTH
from embrew.evaluation.task import Rows, TaskKind
from embrew.text_encoder import TextEncoder, unit_vectors


def score_reranking(encoder: TextEncoder, rows: Rows, **options: Any) -> dict[str, Any]:
    """Return MAP (the main score) and MRR@10 over queries; candidates with equal scores rank by their text.

    In the examples, a query is called after its row, from 1, and a candidate after its position in the row:
    `positive 1`.
    """
    queries, positives, negatives = rows["query"], rows["positive"], rows["negative"]
    for number, (positive, negative) in enumerate(zip(positives, negatives, strict=True), start=1):
        if not positive or not negative:
            raise ValueError(f"query {number} has {len(positive)} positives, {len(negative)} negatives; give both")
    documents = sorted({text for side in (positives, negatives) for texts in side for text in texts})
    position = {text: i for i, text in enumerate(documents)}
    query_vectors = unit_vectors(encoder.encode_query(queries, **options), what="queries", texts=queries)
    vectors = unit_vectors(encoder.encode_document(documents, **options), what="candidates", texts=documents)
    precisions, ranks_of_first, top = [], [], []
    for query, positive, negative in zip(query_vectors, positives, negatives, strict=True):
        relevant = {position[text] for text in positive}
        # in alphabetical order, so that ties do not depend on labels
        candidates = sorted(relevant | {position[text] for text in negative})
        ranked = [candidates[i] for i in np.argsort(-(vectors[candidates] @ query), kind="stable")]
        ranks = [rank for rank, candidate in enumerate(ranked, start=1) if candidate in relevant]
        precisions.append(float(np.mean([hits / rank for hits, rank in enumerate(ranks, start=1)])))
        ranks_of_first.append(ranks[0])
        names = candidate_names(positive, negative)
        top.append([names[documents[candidate]] for candidate in ranked[:SAVED_DEPTH]])
    mean = float(np.mean(precisions))
    numbers = [str(number) for number in range(1, len(queries) + 1)]
    return {
        "main_score": mean,
        "map": mean,
        "mrr_at_10": float(np.mean([1 / rank if rank <= 10 else 0.0 for rank in ranks_of_first])),
        "counts": {"queries": len(queries), "documents": sum(map(len, positives)) + sum(map(len, negatives))},
        "examples": {"score": precisions, "query": numbers, "top": top, "rank": ranks_of_first},
    }


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
    score=score_reranking,
    rows="candidates",
    about=("query",),
    documents=("positive", "negative"),
    lists=frozenset({"positive"}),
    mteb_types=("Reranking",),
)
