"""Evaluation within a stage: its learning curve, the best step, early stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from embrew.training.monitoring.evaluation_steps import EvaluationPoints
from embrew.training.monitoring.scores import Scores


class Point(TypedDict):
    """Scores after so many steps of a stage."""

    step: int
    scores: Scores


@dataclass(frozen=True, kw_only=True)
class StageEvaluation:
    """How a stage is evaluated while it is trained.

    Attributes:
        score: the scores of the weights as they are; asked of the first process only.
        report: told the curve after each evaluation, and how many steps the stage has.
        metric: the score that the best step has the highest of; of equal ones, the first. None: nothing is chosen, the
            weights of the last step stay.
        patience: stop after so many evaluations without a better one.
        at: where it is scored, if not every so many steps: see `evaluation_steps`.
    """

    score: Callable[[], Scores]
    report: Callable[[list[Point], int], None]
    metric: str | None
    patience: int | None = None
    at: EvaluationPoints | None = None

    def best_point(self, curve: Sequence[Point]) -> Point:
        """The point whose weights are kept: the best one (the first of equals), or the last where none is chosen."""
        metric = self.metric
        return curve[-1] if metric is None else max(curve, key=lambda point: point["scores"][metric])

    def should_stop(self, curve: Sequence[Point]) -> bool:
        """Whether patience is at its end."""
        if self.patience is None or self.metric is None or not curve:
            return False
        return len(curve) - 1 - curve.index(self.best_point(curve)) >= self.patience


def trainer_metrics(scores: Scores) -> dict[str, float]:
    """Scores under the names that the Trainer's log, and what reads it, give to evaluations."""
    return {f"eval_{name}": value for name, value in scores.items()}


def curve_from_log(log_history: Iterable[Mapping[str, Any]]) -> list[Point]:
    """The curve that a Trainer's log holds, which each checkpoint keeps: all that is known of a watched stage."""
    entries = [entry for entry in log_history if any(name.startswith("eval_") for name in entry)]
    return [
        {
            "step": int(entry["step"]),
            "scores": {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")},
        }
        for entry in entries
    ]
