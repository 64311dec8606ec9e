"""Scores without training: a language model in several poolings, and BM25."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from embrew.evaluation import Result, evaluate, find_task
from embrew.evaluation.kinds.retrieval import RANKED, read, scores_of_ranking, top
from embrew.evaluation.report import finished, write_result
from embrew.files.checksums import content_hash
from embrew.files.formats import versions
from embrew.progress import is_chosen, within

logger = logging.getLogger(__name__)


def score(encoder: Any, folder: Path, split: str, output: Path, *, name: str, batch_tokens: int) -> Result:
    """Return the scores of an encoder on a BEIR folder; a result in `output` is not computed again."""
    options: Any = {"batch_tokens": batch_tokens, "show_progress_bar": is_chosen()}
    with within(name):
        (result,) = evaluate(encoder, [folder], output_dir=output, split=split, **options)
    return result


def score_bm25(folder: Path, split: str, output: Path) -> Result:
    """Return the scores of BM25 on a BEIR folder, by bm25s with its defaults; a result in `output` is kept."""
    task = find_task(folder, split=split)
    run = {
        "task": task.name,
        "split": split,
        "kind": task.kind,
        "dataset_revision": content_hash(task.files),
        "data": {file.name: content_hash([file]) for file in task.files},
        "model": {"type": "BM25", "name": f"bm25s {bm25s.__version__}"},
        "settings": {},
        "versions": versions(),
    }
    if (kept := finished(output, run)) is not None:
        return kept
    began, data = time.perf_counter(), read(task)
    documents = sorted(data.corpus, key=lambda document: document.id)
    ranked = bm25_ranking([document.content for document in documents], list(data.queries.values()), most=RANKED)
    ids = np.array([document.id for document in documents], dtype=object)
    ranking = {query: ids[rows].tolist() for query, rows in zip(data.queries, ranked, strict=True)}
    scores = scores_of_ranking(ranking, data)
    counts, examples = scores.pop("counts"), scores.pop("examples")
    main = scores.pop("main_score")
    result = Result(task.name, split, task.kind, main, scores, time.perf_counter() - began, counts, examples)
    write_result(result, output, run)
    logger.info("BM25: %s %s: %.4f", task.name, split, main)
    return result


def bm25_ranking(documents: Sequence[str], queries: Sequence[str], *, most: int) -> np.ndarray:
    """Return the indices of each query's best documents by BM25, int64 `(queries, most)`; ties in their order."""
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(documents), stopwords=None, show_progress=False), show_progress=False)
    words = bm25s.tokenize(list(queries), stopwords=None, return_ids=False, show_progress=False)
    known = [[word for word in query if word in index.vocab_dict] for query in words]
    none = np.zeros(len(documents), dtype=np.float32)
    scores = np.stack([index.get_scores(query) if query else none for query in known])
    return top(scores, most)[1]
