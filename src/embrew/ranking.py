"""Rank documents: the largest scores of a matrix, BM25, the fusion of rankings; draw samples that keep the order."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import TypeVar

import numpy as np

RRF = 60  # the constant of reciprocal rank fusion, as in its paper
FUSION_DEPTH = 100  # documents of each ranking that are fused
T = TypeVar("T", int, str)
Item = TypeVar("Item")


# Letters of scripts that are written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNSPACED_ROW = re.compile(f"[{UNSPACED}]+")


class BM25:
    """BM25 over texts, by bm25s with its defaults: words in lower case, none left out.

    In scripts without spaces, words are all pairs of neighbouring letters.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s

        self._count, self._index = len(texts), bm25s.BM25()
        words = bm25s.tokenize([_spaced(text) for text in texts], stopwords=None, show_progress=False)
        self._has_words = any(words.ids)  # of two letters or more; the library cannot index texts without any
        if self._has_words:
            self._index.index(words, show_progress=False)

    @staticmethod
    def name() -> str:
        """Return the library and its version."""
        return f"bm25s {version('bm25s')}"

    def top(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and rows of each query's `k` best texts, as `top`; a text without its words has 0."""
        import bm25s

        words = bm25s.tokenize(
            [_spaced(query) for query in queries], stopwords=None, return_ids=False, show_progress=False
        )
        ranked = []
        for query in words:
            known_words = [word for word in query if word in self._index.vocab_dict] if self._has_words else []
            ranked.append(top(self._scores(known_words)[None], k))
        scores, rows = (np.concatenate(parts) for parts in zip(*ranked, strict=True))
        return scores, rows

    def _scores(self, words: list[str]) -> np.ndarray:
        scores: np.ndarray = self._index.get_scores(words) if words else np.zeros(self._count, dtype=np.float32)
        return scores


def _spaced(text: str) -> str:
    """Return a text with spaces around the pairs of letters in scripts without spaces.

    >>> _spaced("BM25检索模型")
    'BM25 检索 索模 模型 '
    """
    return _UNSPACED_ROW.sub(lambda row: f" {' '.join(map(''.join, pairwise(row[0])))} ", text)


def reciprocal_rank_fusion(rankings: Sequence[Sequence[T]], k: int) -> list[tuple[T, float]]:
    """Return the `k` best items of several rankings and their scores, the sums of 1 / (60 + rank) over the rankings.

    Reciprocal rank fusion (Cormack, Clarke, Buettcher 2009); of equal scores, the lower item is first.

    Examples:
        >>> [item for item, _ in reciprocal_rank_fusion([[3, 1, 2], [1, 4]], 2)]
        [1, 3]
    """
    scores: dict[T, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + 1 / (RRF + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def top(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` largest scores of each row in descending order, and their columns; ties rank by column.

    Examples:
        >>> top(np.array([[1.0, 3.0, 3.0, 2.0]]), 2)[1]
        array([[1, 2]])
    """
    k = min(k, scores.shape[1])
    threshold = np.partition(scores, -k, axis=1)[:, -k, None]
    above, equal = scores > threshold, scores == threshold
    room = k - above.sum(axis=1, keepdims=True)
    chosen = above | (equal & (np.cumsum(equal, axis=1) <= room))  # exactly k per row, columns ascending
    columns = np.nonzero(chosen)[1].reshape(len(scores), k)
    values = np.take_along_axis(scores, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(columns, order, axis=1)


def sample_in_order(items: Sequence[Item], count: int | None, *, seed: int) -> list[Item]:
    """Return up to `count` items in their order; all of them if `count` is None.

    Examples:
        >>> sample_in_order("abcdef", 3, seed=0)
        ['a', 'd', 'f']
    """
    if count is None or len(items) <= count:
        return list(items)
    return [items[i] for i in sorted(random.Random(seed).sample(range(len(items)), count))]
