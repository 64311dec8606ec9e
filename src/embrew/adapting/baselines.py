"""Scores without training: of BM25, and of an encoder and BM25 together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from embrew.data.beir import RetrievalData
from embrew.evaluation import Result, find_task
from embrew.evaluation.kinds.retrieval import SEARCH_DEPTH, rank, read, scores_of_ranking
from embrew.evaluation.results import Sidecar, finished, write_result
from embrew.evaluation.runs import describe_data
from embrew.files.formats import versions
from embrew.progress import is_chosen
from embrew.ranking import BM25, FUSION_DEPTH, reciprocal_rank_fusion
from embrew.text_encoder import TextEncoder, encode_options

logger = logging.getLogger(__name__)


def score_bm25(folder: Path, split: str, output: Path) -> Result:
    """Return the scores of BM25 on a BEIR folder, by bm25s with its defaults; a result in `output` is kept."""
    return _score_ranking(folder, split, output, {"type": "BM25", "name": BM25.name()}, _bm25_ranking)


def score_hybrid(
    opener: Callable[[], TextEncoder], folder: Path, split: str, output: Path, *, name: str, batch_tokens: int
) -> Result:
    """Return the scores of the fusion of an encoder's ranking with that of BM25, as `embrew search --hybrid` ranks.

    Args:
        opener: function that opens the encoder.
        folder, split: a BEIR folder and its split.
        output: folder of results; a finished one is kept.
        name: name of the encoder's results.
        batch_tokens: padded tokens per batch.
    """

    def ranking(data: RetrievalData) -> dict[str, list[str]]:
        encoder, by_words = opener(), _bm25_ranking(data, with_a_word=True)
        options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=is_chosen())
        by_vectors = rank(encoder, data.corpus, data.queries, top_k=SEARCH_DEPTH, **options)
        return {
            query: [
                document
                for document, _ in reciprocal_rank_fusion(
                    [by_vectors[query][:FUSION_DEPTH], by_words[query][:FUSION_DEPTH]], SEARCH_DEPTH
                )
            ]
            for query in data.queries
        }

    model = {"type": "hybrid", "name": BM25.name(), "encoder": name}
    return _score_ranking(folder, split, output, model, ranking)


def _score_ranking(
    folder: Path,
    split: str,
    output: Path,
    model: dict[str, str],
    ranking: Callable[[RetrievalData], dict[str, list[str]]],
) -> Result:
    task = find_task(folder, split=split)
    run: Sidecar = {**describe_data(task), "model": model, "settings": {}, "versions": versions()}
    if (earlier := finished(output, run)) is not None:
        return earlier
    began, data = time.perf_counter(), read(task)
    scores = scores_of_ranking(ranking(data), data)
    result = Result.of_scores(task, scores, time.perf_counter() - began)
    write_result(result, output, run)
    logger.info("%s: %s %s: %.4f", model["type"], task.name, split, result.main_score)
    return result


def _bm25_ranking(data: RetrievalData, *, with_a_word: bool = False) -> dict[str, list[str]]:
    """Return the ids of each query's best documents by BM25: all, or those with a word of the query."""
    documents = sorted(data.corpus, key=lambda document: document.id)
    scores, rows = BM25([document.content for document in documents]).top(list(data.queries.values()), SEARCH_DEPTH)
    return {
        query: [
            documents[row].id
            for score, row in zip(query_scores, query_rows, strict=True)
            if score > 0 or not with_a_word
        ]
        for query, query_scores, query_rows in zip(data.queries, scores, rows, strict=True)
    }
