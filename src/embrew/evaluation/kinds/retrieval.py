"""Retrieval and reranking by cosine.

Retrieval is exact nearest-neighbour search, scored with nDCG@10, Recall@10 and MRR@10 as BEIR defines them. Documents
with equal scores rank by id (ascending), so that a ranking does not depend on the order of a file. Reranking is the
mean average precision of each query's own candidates.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Unpack

import numpy as np

from embrew.data.beir import Document, RetrievalData
from embrew.evaluation.processes import CorpusChunks
from embrew.evaluation.rows import task_retrieval
from embrew.evaluation.task import NamedScores, Task, TaskColumns, TaskKind
from embrew.ranking import sample_in_order, top
from embrew.text_encoder import EncodeOptions, TextEncoder, unit_vectors

logger = logging.getLogger(__name__)
CHUNK = 8192  # documents that are encoded by one call
RANKING_DEPTH = 100  # depth of the rankings that are scored and compared
SEARCH_DEPTH = RANKING_DEPTH + 1  # depth of the search: one of the documents may be the query itself
SAVED_DEPTH = 10  # depth of the rankings that are saved in the results
_QUERIES_PER_BLOCK = 1024  # scores are computed for this many queries at a time


def read(
    task: Task,
    *,
    documents: Literal["all", "judged"] = "all",
    distractors: int = 0,
    seed: int = 42,
    ignore_identical_ids: bool = False,
) -> RetrievalData:
    """Return the corpus, queries and relevance judgements of a task."""
    data = with_setting(task_retrieval(task), ignore_identical_ids=ignore_identical_ids)
    return select_documents(data, documents=documents, distractors=distractors, seed=seed)


def with_setting(data: RetrievalData, *, ignore_identical_ids: bool) -> RetrievalData:
    """Return the data with `ignore_identical_ids` as the task sets it."""
    if not isinstance(ignore_identical_ids, bool):
        raise ValueError(f"ignore_identical_ids={ignore_identical_ids!r}; give true or false")
    return replace(data, ignore_identical_ids=ignore_identical_ids)


def select_documents(
    data: RetrievalData, *, documents: Literal["all", "judged"], distractors: int, seed: int
) -> RetrievalData:
    """Return the data with the whole corpus, or with the documents in the qrels and a seeded sample of the others."""
    if documents not in ("all", "judged"):
        raise ValueError(f"documents={documents!r}; choose from all, judged")
    if documents == "all":
        if distractors:
            raise ValueError(f"distractors={distractors} needs documents: judged; all has every document already")
        return data
    judged_ids = {document for grades in data.qrels.values() for document in grades}
    others = sorted(document.id for document in data.corpus if document.id not in judged_ids)
    if distractors > len(others):
        raise ValueError(f"distractors={distractors}, but the corpus has {len(others)} documents that are not judged")
    chosen = judged_ids | set(sample_in_order(others, distractors, seed=seed))
    return replace(data, corpus=[document for document in data.corpus if document.id in chosen])


def score_retrieval(
    encoder: TextEncoder, data: RetrievalData, chunks: CorpusChunks | None = None, **options: Unpack[EncodeOptions]
) -> NamedScores:
    """Return nDCG@10 (the main score), Recall@10 and MRR@10; `options` go to the encode methods.

    A query whose relevant documents are all missing from the corpus scores 0; one without relevant documents in the
    qrels is excluded. Both are counted.
    """
    relevant = _relevant_grades(data)
    queries = {query: data.queries[query] for query in relevant}
    ranking = rank(encoder, data.corpus, queries, top_k=SEARCH_DEPTH, chunk_size=CHUNK, chunks=chunks, **options)
    return scores_of_ranking(ranking, data)


def _relevant_grades(data: RetrievalData) -> dict[str, dict[str, int]]:
    """Return the relevant documents (grade above 0) of each query that has any, with their grades."""
    relevant = {q: {d: g for d, g in grades.items() if g > 0} for q, grades in data.qrels.items()}
    with_relevant = {query: grades for query, grades in relevant.items() if grades}
    if not with_relevant:
        raise ValueError("no query has a relevant document; check the grades of the qrels")
    return with_relevant


def without_self_matches(ranking: Mapping[str, Sequence[str]], data: RetrievalData) -> dict[str, list[str]]:
    """Return the first `RANKING_DEPTH` ids of each query in a ranking, without the query's own document."""
    return {
        query: [document for document in documents if document != query or query not in data.self_matches][
            :RANKING_DEPTH
        ]
        for query, documents in ranking.items()
    }


def scores_of_ranking(ranking: Mapping[str, Sequence[str]], data: RetrievalData) -> NamedScores:
    """Return the scores of a ranking of `SEARCH_DEPTH` documents per query, as `score_retrieval` returns them."""
    ranking = without_self_matches(ranking, data)
    relevant, ids = _relevant_grades(data), {document.id for document in data.corpus}
    missing = [query for query, grades in relevant.items() if not ids & set(grades)]
    if missing:
        logger.warning("%d queries have no relevant document in the corpus, e.g. %r", len(missing), missing[0])
    by_query = metrics_by_query(ranking, relevant)
    scores = {name: math.fsum(values) / len(values) for name, values in by_query.items()}
    counts = {
        "documents": len(data.corpus),
        "queries": len(relevant),
        "queries_without_judgement": len(data.qrels) - len(relevant),
        "queries_without_document": len(missing),
        "self_matches": len(data.self_matches & relevant.keys()),
    }
    examples = {
        "score": by_query["ndcg_at_10"],
        "query": list(relevant),
        "top": [list(ranking[query][:SAVED_DEPTH]) for query in relevant],
        "rank": [  # of the first relevant document
            next((number for number, document in enumerate(ranking[query], start=1) if document in grades), None)
            for query, grades in relevant.items()
        ],
    }
    return {"main_score": scores["ndcg_at_10"], **scores, "counts": counts, "examples": examples}


def rank(
    encoder: TextEncoder,
    corpus: Sequence[Document],
    queries: Mapping[str, str],
    *,
    top_k: int = 10,
    chunk_size: int = CHUNK,
    chunks: CorpusChunks | None = None,
    **options: Unpack[EncodeOptions],
) -> dict[str, list[str]]:
    """Return the ids of each query's `top_k` nearest documents; `chunk_size` documents are encoded at a time.

    Raises:
        FinishedByOthers: the processes share the corpus, and another one finishes the task.
    """
    documents = sorted(corpus, key=lambda document: document.id)
    texts = list(queries.values())
    chunks = chunks or CorpusChunks()
    num_chunks = math.ceil(len(documents) / chunk_size)
    query_vectors = None
    for chunk_index in chunks.remaining(num_chunks):
        if query_vectors is None:
            query_vectors = unit_vectors(encoder.encode_query(texts, **options), what="queries", texts=texts)
        offset = chunk_index * chunk_size
        contents = [document.content for document in documents[offset : offset + chunk_size]]
        chunk_vectors = unit_vectors(encoder.encode_document(contents, **options), what="documents", texts=contents)
        blocks = range(0, len(query_vectors), _QUERIES_PER_BLOCK)
        top_by_block = [top(query_vectors[i : i + _QUERIES_PER_BLOCK] @ chunk_vectors.T, top_k) for i in blocks]
        scores, positions = (np.concatenate(parts) for parts in zip(*top_by_block, strict=True))
        chunks.add(chunk_index, scores, offset + positions, top_k)
    ids = np.array([document.id for document in documents], dtype=object)
    return dict(zip(queries, ids[chunks.best(num_chunks, top_k)].tolist(), strict=True))


def metrics_by_query(
    ranking: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, int]]
) -> dict[str, list[float]]:
    """Return nDCG@10 (gain = grade, discount log2(rank + 1)), Recall@10 and MRR@10 by query, in `qrels`' order."""
    ndcg, recall, reciprocal_rank = [], [], []
    for query, grades in qrels.items():
        gains = [max(grades.get(document, 0), 0) for document in ranking[query][:10]]
        ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        ndcg.append(_dcg(gains) / _dcg(ideal[:10]))
        recall.append(sum(gain > 0 for gain in gains) / len(ideal))
        reciprocal_rank.append(next((1 / i for i, gain in enumerate(gains, start=1) if gain > 0), 0.0))
    return {"ndcg_at_10": ndcg, "recall_at_10": recall, "mrr_at_10": reciprocal_rank}


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(i + 1) for i, gain in enumerate(gains, start=1))


RETRIEVAL = TaskKind(
    name="retrieval",
    metric="nDCG@10",
    score=score_retrieval,
    read=read,
    corpus=True,
    shared=True,
    mteb_types=("Retrieval",),
)


def score_reranking(encoder: TextEncoder, rows: TaskColumns, **options: Unpack[EncodeOptions]) -> NamedScores:
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
