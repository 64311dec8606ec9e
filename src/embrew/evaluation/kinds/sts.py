"""Semantic textual similarity: Spearman's correlation of cosines with human scores.

Two protocols are in use, and their scores are not comparable: SentEval's `all` correlates the pairs of all subsets
together (ESE, PromptEOL); `per-subset` is the mean of the subsets' correlations.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import Columns, Evaluate, Evaluated, Task, TaskKind
from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import unit_vectors

Protocol = Literal["all", "per-subset"]


def prepare(task: Task, *, protocol: Protocol = "all", columns: Columns = None) -> Evaluate:
    """Read scored pairs, to evaluate encoders on them."""
    rows = task_rows(task, STS, columns)
    left, right, gold, subsets = (list(rows[name]) for name in ("sentence1", "sentence2", "score", "subset"))

    def evaluate(encoder: TextEncoder, options: Mapping[str, Any]) -> Evaluated:
        scores = evaluate_sts(encoder, left, right, gold, subsets=subsets, protocol=protocol, **options)
        return scores, {"pairs": len(gold)}

    return evaluate


def evaluate_sts(
    encoder: TextEncoder,
    sentence1: Sequence[str],
    sentence2: Sequence[str],
    gold: Sequence[float],
    *,
    subsets: Sequence[str | None] | None = None,
    protocol: Protocol = "all",
    **options: Any,
) -> dict[str, Any]:
    """Return scores of an encoder on sentence pairs; `options` go to `encoder.encode`.

    Returns:
        `main_score` (by `protocol`), `cosine_spearman` and `cosine_pearson` over all pairs, and `subsets`.
    """
    if protocol not in ("all", "per-subset"):
        raise ValueError(f"sts_protocol={protocol!r}; choose from all, per-subset")
    names = sorted({name for name in subsets or [] if name is not None})
    if protocol == "per-subset" and (not names or None in (subsets or [])):
        raise ValueError(
            "sts_protocol='per-subset' needs a value in the column subset of every row; use sts_protocol='all'"
        )
    cosines = pair_cosines(encoder, sentence1, sentence2, **options)
    scores = np.asarray(gold, dtype=np.float64)
    overall = spearman(cosines, scores)
    by_subset: dict[str, float] = {}
    if protocol == "per-subset" or len(names) > 1:
        labels = np.asarray(subsets, dtype=object)
        for name in names:
            chosen = labels == name
            if protocol == "per-subset" or (_varies(scores[chosen]) and _varies(cosines[chosen])):
                by_subset[name] = spearman(cosines[chosen], scores[chosen], what=f"subset {name}")
    main = float(np.mean(list(by_subset.values()))) if protocol == "per-subset" else overall
    return {
        "main_score": main,
        "cosine_spearman": overall,
        "cosine_pearson": float(np.corrcoef(cosines, scores)[0, 1]),
        "protocol": protocol,
        "subsets": by_subset,
        "examples": {"predicted": cosines.tolist(), "gold": scores.tolist(), "subset": list(subsets or [])},
    }


def pair_cosines(encoder: TextEncoder, left: Sequence[str], right: Sequence[str], **options: Any) -> np.ndarray:
    """Return the cosine of each pair, float32 `(pairs,)`; a sentence that occurs several times is encoded once."""
    position: dict[str, int] = {}
    for text in [*left, *right]:
        position.setdefault(text, len(position))
    vectors = unit_vectors(encoder.encode(list(position), **options), what="sentences", texts=list(position))
    rows = [vectors[[position[text] for text in side]] for side in (left, right)]
    cosines: np.ndarray = np.einsum("nd,nd->n", rows[0], rows[1])
    return cosines


def spearman(predicted: np.ndarray, gold: np.ndarray, *, what: str = "the data") -> float:
    """Return Spearman's rank correlation; raise if it is not defined."""
    from scipy.stats import spearmanr

    for values, name in ((gold, "gold scores"), (predicted, "cosines")):
        if len(values) < 2 or not np.isfinite(values).all():
            raise ValueError(
                f"Spearman's correlation of {what} is not defined: {len(values)} {name}, or some not finite"
            )
        if not _varies(values):
            reason = "the vectors have collapsed" if name == "cosines" else "check the score column"
            raise ValueError(f"Spearman's correlation of {what} is not defined: all {name} are {values[0]}; {reason}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
    order = np.argsort(predicted, kind="stable")
    ordered = times[order]
    left, squares = _centred_ranks(predicted[order], ordered)
    weighted = np.empty_like(left)
    weighted[order] = ordered * left
    order = np.argsort(gold, kind="stable")
    right, others = _centred_ranks(gold[order], times[order])
    norms = np.sqrt(squares * others)
    return np.divide(
        np.einsum("ps,ps->s", weighted[order], right), norms, out=np.zeros(times.shape[1]), where=norms > 0
    )


def _centred_ranks(values: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks minus the mean rank, `(pairs, samples)`, and the sum of their squares, `(samples,)`.

    `values` ascend; equal ones share their mean rank. `times` says how often each is in each sample.
    """
    starts = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    sizes = times if len(starts) == len(values) else np.add.reduceat(times, starts, axis=0)
    ranks = np.cumsum(sizes, axis=0)
    mean = (ranks[-1] + 1) / 2
    ranks -= (sizes - 1) / 2
    ranks -= mean
    squares = np.einsum("gs,gs,gs->s", sizes, ranks, ranks)
    return (ranks if sizes is times else np.repeat(ranks, np.diff(starts, append=len(values)), axis=0)), squares


STS = TaskKind(
    name="sts",
    metric="Spearman",
    prepare=prepare,
    rows="scored",
    about=("sentence1", "sentence2"),
    columns=frozenset({"sentence1", "sentence2", "score"}),
    mteb_types=("STS",),
    statistic=_statistic,
)
