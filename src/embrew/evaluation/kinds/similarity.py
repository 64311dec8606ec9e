"""Similarity of pairs: cosines of two texts, compared with human scores (STS, summaries) or labels (pairs).

Two protocols of STS are in use, and their scores are not comparable: SentEval's `all` correlates the pairs of all
subsets together (ESE, PromptEOL); `per-subset` is the mean of the subsets' correlations.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Literal, Unpack

import numpy as np

from embrew.evaluation.task import NamedScores, TaskColumns, TaskKind
from embrew.text_encoder import EncodeOptions, TextEncoder, unit_vectors

logger = logging.getLogger(__name__)


def score_sts(
    encoder: TextEncoder,
    rows: TaskColumns,
    *,
    protocol: Literal["all", "per-subset"] = "all",
    **options: Unpack[EncodeOptions],
) -> NamedScores:
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


def pair_cosines(
    encoder: TextEncoder, left: Sequence[str], right: Sequence[str], **options: Unpack[EncodeOptions]
) -> np.ndarray:
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


def _sample_score(examples: Mapping[str, np.ndarray], scores: NamedScores, times: np.ndarray) -> np.ndarray:
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
    statistic=_sample_score,
)


def score_pair_classification(encoder: TextEncoder, rows: TaskColumns, **options: Unpack[EncodeOptions]) -> NamedScores:
    """Return average precision of the cosine (the main score), and the best F1 and accuracy over all thresholds.

    Labels are `1` for pairs that match, else `0`.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve

    labels = set(rows["label"])
    if labels != {"0", "1"}:
        raise ValueError(f"pair classification needs the labels 0 and 1; found {', '.join(sorted(labels)[:5])}")
    gold = np.array([int(label) for label in rows["label"]])
    cosines = pair_cosines(encoder, rows["sentence1"], rows["sentence2"], **options)
    precision, recall, _ = precision_recall_curve(gold, cosines)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    ap = float(average_precision_score(gold, cosines))
    return {
        "main_score": ap,
        "cosine_ap": ap,
        "cosine_f1": float(f1.max()),
        "cosine_accuracy": best_threshold(cosines, gold)[1],
        "positive_share": float(gold.mean()),
        "counts": {"pairs": len(gold)},
        "examples": {"predicted": cosines.tolist(), "gold": gold.tolist()},
    }


def best_threshold(scores: np.ndarray, gold: np.ndarray) -> tuple[float, float]:
    """Return the score from which on pairs are best predicted to match, and the accuracy; of several, the highest."""
    order = np.argsort(-scores, kind="stable")
    hits = np.concatenate([[0], np.cumsum(gold[order])])
    misses = np.concatenate([[0], np.cumsum(1 - gold[order])])
    right = hits + (len(gold) - gold.sum()) - misses  # if the first i are predicted positive
    ends = np.concatenate([[True], np.diff(scores[order]) != 0, [True]])  # equal scores are on the same side
    best = int(np.argmax(np.where(ends, right, -1)))
    return (float(scores[order[best - 1]]) if best else math.inf), float(right[best] / len(gold))


def _sample_average_precision(examples: Mapping[str, np.ndarray], scores: NamedScores, times: np.ndarray) -> np.ndarray:
    """Return the average precision of bootstrap samples, `(samples,)`; 0 without positives."""
    predicted, gold = examples["predicted"], examples["gold"]
    order = np.argsort(-predicted, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(predicted[order]) != 0, True))  # of groups of equal cosines
    ordered = times[order]
    ranked = np.cumsum(ordered, axis=0)[ends]
    hits = np.cumsum(ordered * gold[order][:, None], axis=0)[ends]
    precision = hits / np.maximum(ranked, 1)
    gained = np.diff(hits, axis=0, prepend=0)
    return np.asarray(np.einsum("gs,gs->s", precision, gained) / np.maximum(hits[-1], 1))


PAIR_CLASSIFICATION = TaskKind(
    name="pair_classification",
    metric="AP",
    score=score_pair_classification,
    rows="labelled_pairs",
    about=("sentence1", "sentence2"),
    mteb_types=("PairClassification",),
    statistic=_sample_average_precision,
)


def score_summarization(encoder: TextEncoder, rows: TaskColumns, **options: Unpack[EncodeOptions]) -> NamedScores:
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
