"""Pair classification: average precision of the cosines of matching pairs against those of other pairs."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from embrew.evaluation.kinds.sts import pair_cosines
from embrew.evaluation.task import Rows, TaskKind
from embrew.text_encoder import TextEncoder


def score_pair_classification(encoder: TextEncoder, rows: Rows, **options: Any) -> dict[str, Any]:
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


def _statistic(examples: Mapping[str, np.ndarray], scores: Mapping[str, Any], times: np.ndarray) -> np.ndarray:
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
    statistic=_statistic,
)
