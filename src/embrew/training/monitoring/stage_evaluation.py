"""Evaluation within a stage: its learning curve, the best step, early stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from embrew.files.formats import GAP
from embrew.recipe import Recipe
from embrew.training.monitoring.evaluation_steps import EvaluationPoints
from embrew.training.monitoring.scores import Evaluate, Scores, without_gap


class Point(TypedDict):
    """Scores after a number of steps of a stage."""

    step: int
    scores: Scores


@dataclass(frozen=True, kw_only=True)
class StageEvaluation:
    """How a stage is evaluated while it is trained.

    Attributes:
        score: returns the scores of the current weights; called in the first process only.
        report: called after each evaluation with the curve and the number of steps of the stage.
        metric: the score whose maximum, the first among equals, is the best step. None: the last step is kept.
        patience: early stopping after `patience` evaluations without a better score.
        at: the steps of evaluations, see `evaluation_steps`; None: at a fixed interval.
    """

    score: Callable[[], Scores]
    report: Callable[[list[Point], int], None]
    metric: str | None
    patience: int | None = None
    at: EvaluationPoints | None = None

    def best_point(self, curve: Sequence[Point]) -> Point:
        """Return the point whose weights are kept: the best (the first among equals), or the last without `metric`."""
        metric = self.metric
        return curve[-1] if metric is None else max(curve, key=lambda point: point["scores"][metric])

    def should_stop(self, curve: Sequence[Point]) -> bool:
        """Return whether the last `patience` evaluations were no better."""
        if self.patience is None or self.metric is None or not curve:
            return False
        return len(curve) - 1 - curve.index(self.best_point(curve)) >= self.patience


def trainer_metrics(scores: Scores) -> dict[str, float]:
    """Return scores under the names that the Trainer gives to evaluations in its log."""
    return {f"eval_{name}": value for name, value in scores.items()}


def curve_from_log(log_history: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return the learning curve from a Trainer's log, which every checkpoint holds."""
    entries = [entry for entry in log_history if any(name.startswith("eval_") for name in entry)]
    return [
        {
            "step": int(entry["step"]),
            "scores": {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")},
        }
        for entry in entries
    ]


def of_sets(curve: Iterable[Point]) -> list[Point]:
    """Return a curve with the scores of dev and guard sets only."""
    return [{"step": point["step"], "scores": without_gap(point["scores"])} for point in curve]


def check_metric(recipe: Recipe, evaluate: Evaluate | None, known: Sequence[str] | None) -> None:
    """Raise if a recipe evaluates within stages without `evaluate`, or chooses by a score that is not `known`."""
    wanted = recipe.evaluation
    if wanted is None or (wanted.every is None and wanted.at is None):
        return
    if evaluate is None:
        asked = f"at={wanted.at}" if wanted.every is None else f"every={wanted.every}"
        raise ValueError(f"the recipe has evaluation.{asked}, but train was called without evaluate=")
    if wanted.every is not None and known is not None and wanted.metric not in (*known, GAP):
        raise ValueError(f"evaluation.metric={wanted.metric!r} is not a score; choose from {', '.join(known)}")
