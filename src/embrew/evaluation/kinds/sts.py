"""Semantic textual similarity: Spearman's correlation of cosines with human scores.

Two protocols are in use, and their scores are not comparable: SentEval's `all` correlates the pairs of all subsets
together (ESE, PromptEOL); `per-subset` is the mean of the subsets' correlations.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from embrew.evaluation.task import Rows, TaskKind
from embrew.text_encoder import TextEncoder, unit_vectors


def score_sts(
    encoder: TextEncoder, rows: Rows, *, protocol: Literal["all", "per-subset"] = "all", **options: Any
) -> dict[str, Any]:
    """Return `cosine_spearman` and `cosine_pearson` over all pairs, `subsets`, and the main score by `protocol`."""
    if protocol not in ("all", "per-subset"):
        raise ValueError(f"protocol={protocol!r}; choose from all, per-subset")
    subsets = np.asarray(rows["subset"], dtype=object)
    names = sorted({name for name in rows["subset"] if name is not None})
    if protocol == "per-subset" and (not names or None in rows["subset"]):
        raise ValueError("protocol='per-subset' needs a value in the column subset of every row; use protocol='all'")
    cosines = pair_cosines(encoder, rows["sentence1"], rows["sentence2"], **options)
    scores = np.asarray(rows["score"], dtype=np.float64)
    overall = spearman(cosines, scores)
    by_subset: dict[str, float] = {}
    if protocol == "per-subset" or len(names) > 1:
        for name in names:
            chosen = subsets == name
            if protocol == "per-subset" or (_varies(scores[chosen]) and _varies(cosines[chosen])):
                by_subset[name] = spearman(cosines[chosen], scores[chosen], what=f"subset {name}")
    return {
        "main_score": float(np.mean(list(by_subset.values()))) if protocol == "per-subset" else overall,
        "cosine_spearman": overall,
        "cosine_pearson": float(np.corrcoef(cosines, scores)[0, 1]),
        "protocol": protocol,
        "subsets": by_subset,
        "counts": {"pairs": len(scores)},
        "examples": {"predicted": cosines.tolist(), "gold": scores.tolist(), "subset": list(rows["subset"])},
    }


def pair_cosines(encoder: TextEncoder, left: Sequence[str], right: Sequence[str], **options: Any) -> np.ndarray:
    """Return the cosine of each pair, float32 `(pairs,)`; a sentence that occurs several times is encoded once."""
    position: dict[str, int] = {}
    for text in [*left, *right]:
        position.setdefault(text, len(position))
    vectors = unit_vectors(encoder.encode(list(position), **options), what="sentences", texts=list(position))
    rows = [vectors[[position[text] for text in side]] for side in (left, right)]
    return np.asarray(np.einsum("nd,nd->n", rows[0], rows[1]))


def spearman(predicted: np.ndarray, gold: np.ndarray, *, what: str = "the data") -> float:
    """Return Spearman's rank correlation; raise if it is not defined."""
    from scipy.stats import spearmanr

    for values, name in ((gold, "gold scores"), (predicted, "cosines")):
        if not _varies(values):
            reason = "the vectors have collapsed" if name == "cosines" else "check the score column"
            raise ValueError(
                f"Spearman's correlation of {what} is not defined: all {len(values)} {name} are {values[0]}; {reason}"
            )
    return float(spearmanr(predicted, gold).statistic)


def _varies(values: np.ndarray) -> bool:
    return len(values) > 1 and bool((values != values[0]).any())


def _statistic(examples: Mapping[str, np.ndarray], scores: Mapping[str, Any], times: np.ndarray) -> np.ndarray:
    """Return the main score of bootstrap samples."""
    predicted, gold = examples["predicted"], examples["gold"]
    if scores.get("protocol") != "per-subset":
        return sample_spearman(predicted, gold, times)
    subsets = examples["subset"]
    parts = [subsets == name for name in sorted(set(subsets))]
    return np.mean([sample_spearman(predicted[part], gold[part], times[part]) for part in parts], axis=0)


def sample_spearman(predicted: np.ndarray, gold: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation in bootstrap samples, `(samples,)`; 0 where one side of a sample is constant.

    Args:
        predicted: `(pairs,)`.
        gold: `(pairs,)`.
        times: How often each pair is in each sample, `(pairs, samples)`.
    """
    left, right = _centred_ranks(predicted, times), _centred_ranks(gold, times)
    covariance, *variances = (
        np.einsum("ps,ps,ps->s", times, a, b) for a, b in ((left, right), (left, left), (right, right))
    )
    norms = np.sqrt(variances[0] * variances[1])
    return np.divide(covariance, norms, out=np.zeros(times.shape[1]), where=norms > 0)


def _centred_ranks(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the rank of each value minus the mean rank, `(pairs, samples)`; equal values share their mean rank."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=np.nan) != 0)
    sizes = np.add.reduceat(times[order], starts, axis=0)
    ranks = np.cumsum(sizes, axis=0) - (sizes - 1) / 2 - (times.sum(axis=0) + 1) / 2
    _, group = np.unique(values, return_inverse=True)
    return np.asarray(ranks[group])


STS = TaskKind(
    name="sts",
    metric="Spearman",
    score=score_sts,
    rows="scored",
    about=("sentence1", "sentence2"),
    mteb_types=("STS",),
    statistic=_statistic,
)
