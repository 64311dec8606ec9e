"""Evaluation within a stage: its steps, its scores, the learning curve, the best step, early stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

from transformers import TrainingArguments

from embrew.encoder import Encoder
from embrew.files.formats import GAP, GAP_OTHER, GUARD
from embrew.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset

Scores = dict[str, float]
Evaluate = Callable[[Encoder], Scores]


@runtime_checkable
class DevSets(Protocol):
    """An `Evaluate` with named sets; `embrew.evaluation.dev.dev_sets` returns one."""

    @property
    def metrics(self) -> list[str]:
        """Names of the scores that can choose the best step."""

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split, metric and, once known, size of each set, by the name of its score."""

    def __call__(self, encoder: Encoder) -> Scores:
        """Return the scores of an encoder."""

    def overlap(self, stage: str, data: str, rows: Dataset) -> Mapping[str, Any]:
        """Return, and log, how many of a stage's training rows of a data set hold a text of each set."""


def scores_line(scores: Mapping[str, float], base: Mapping[str, float]) -> str:
    """Return scores as a line: `dev 0.612 (base 0.588)  guard 0.701 (base 0.744)  got worse: STSB 0.744 → 0.701`.

    The line has the means of the dev and of the guard sets, alignment and uniformity if they were computed, the share
    of the gap closed of a compression stage, and each guard set whose score is below the base's.
    """
    parts = []
    for name in ("dev", "guard", "alignment", "uniformity"):
        if name in scores:
            before = f" (base {base[name]:.3f})" if name in base else ""
            parts.append(f"{name} {scores[name]:.3f}{before}")
    if GAP in scores:
        parts.append(gap_words(scores[GAP], scores[GAP_OTHER]))
    watched = [name for name in scores if name == "dev" or name.startswith(GUARD)]
    worse = [name for name in watched if name in base and scores[name] < base[name]]
    if worse:
        drops = [f"{name.removeprefix(GUARD)} {base[name]:.3f} → {scores[name]:.3f}" for name in worse]
        parts.append(f"got worse: {', '.join(drops)}")
    return "  ".join(parts)


def gap_words(own: float, other: float) -> str:
    """Return the share of the gap closed in words.

    >>> gap_words(0.231, -0.05)
    "share of the gap closed 0.23 (another text's memory −0.05)"
    """
    return f"share of the gap closed {signed(own)} (another text's memory {signed(other)})"


def signed(share: float) -> str:
    """Return a share with two digits and a minus sign."""
    return f"{share:.2f}".replace("-", "−")


EvaluationPoints = Literal["log"] | Sequence[int]


def evaluation_steps(at: EvaluationPoints, *, last: int, per_step: int) -> list[int]:
    """Return the optimiser steps after which an encoder is scored; the last step is always one of them.

    Args:
        at: `log`: 1, 2, 4, 8, …; or numbers of samples: each is scored after the first step that has seen that many.
        last: number of steps.
        per_step: samples per optimiser step.

    Examples:
        >>> evaluation_steps("log", last=10, per_step=32)
        [1, 2, 4, 8, 10]
        >>> evaluation_steps([32, 100, 5000], last=10, per_step=32)
        [1, 4, 10]
    """
    if at == "log":
        wanted = [2**i for i in range(last.bit_length())]
    else:
        wanted = [-(-int(samples) // per_step) for samples in at]
    return sorted({step for step in wanted if step < last} | {last})


def samples_per_step(args: TrainingArguments) -> int:
    """Return the rows per optimiser step, over all processes."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


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


def curve_from_log(log_history: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return the learning curve from a Trainer's log, which every checkpoint holds."""
    curve: list[Point] = []
    for entry in log_history:
        scores = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
        if scores:
            curve.append({"step": int(entry["step"]), "scores": scores})
    return curve


def of_sets(curve: Iterable[Point]) -> list[Point]:
    """Return a curve with the scores of dev and guard sets only."""
    return [
        {
            "step": point["step"],
            "scores": {name: value for name, value in point["scores"].items() if name not in (GAP, GAP_OTHER)},
        }
        for point in curve
    ]


def check_metric(recipe: Recipe, evaluate: Evaluate | None, known: Sequence[str] | None) -> None:
    """Raise if a recipe evaluates within stages without `evaluate`, or chooses by a score that is not `known`."""
    evaluation = recipe.evaluation
    if evaluation is None or (evaluation.every is None and evaluation.at is None):
        return
    if evaluate is None:
        setting = f"at={evaluation.at}" if evaluation.every is None else f"every={evaluation.every}"
        raise ValueError(f"the recipe has evaluation.{setting}, but train was called without evaluate=")
    if evaluation.every is not None and known is not None and evaluation.metric not in (*known, GAP):
        raise ValueError(f"evaluation.metric={evaluation.metric!r} is not a score; choose from {', '.join(known)}")
