"""Learning efficiency: scores by samples, steps and epochs, from the logs of training runs.

    samples(t) = Σ over the stages before of steps · rows per step + steps(t) · rows per step
    epochs(t)  = steps(t) · rows per step / rows of the stage's data
    front      = evaluations whose score no evaluation with at most as many samples reaches

Source: *Following the Autoregressive Nature of LLM Embeddings via Compression and Alignment*, which compares methods by
score against samples seen and against epochs (Fig. 3), and by the Pareto front of samples and score (Fig. 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from embrew.files.formats import GUARD, RUN
from embrew.files.reading import content_of, read_json

Point = TypeVar("Point")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation during a run.

    Attributes:
        stage: stage of the run.
        step: optimiser steps of the stage so far.
        samples: rows seen so far, in this stage and the counted stages before it.
        epochs: epochs of the stage's data so far.
        scores: all scores of this evaluation.
    """

    stage: str
    step: int
    samples: int
    epochs: float
    scores: dict[str, float]

    @property
    def score(self) -> float:
        """The mean over the dev sets."""
        return self.scores["dev"]


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run in order, the first before training; `sets` describes the evaluation sets by name."""

    name: str
    evaluations: tuple[Evaluation, ...]
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def scored_on(self) -> str:
        """The dev sets with split and size; `unknown` where the run names none."""
        sets = [
            f"{name} {about['split']}, {about.get('size', 'size unknown')}"
            for name, about in self.sets.items()
            if not name.startswith(GUARD) and name not in ("alignment", "uniformity")
        ]
        return "; ".join(sets) or "unknown"

    @property
    def best(self) -> Evaluation:
        """The first evaluation with the highest score."""
        return max(self.evaluations, key=lambda evaluation: evaluation.score)

    def passes(self, score: float) -> Evaluation | None:
        """Return the first evaluation with a score above `score`, without interpolation."""
        return next((evaluation for evaluation in self.evaluations if evaluation.score > score), None)


def read_curve(folder: str | Path, *, stage: str | None = None) -> Curve:
    """Read the curve of a run that was evaluated during training (`evaluation.at` or `every` in its recipe).

    Args:
        folder: output folder of `embrew train`.
        stage: read this stage only, with samples counted from its start. Default: all stages in order; of a stage that
            was not evaluated during training, the final scores.

    Raises:
        FileNotFoundError: the folder has no `run.json`.
        ValueError: no such stage, or it was not evaluated during training.
    """
    file = Path(folder) / RUN.file
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no {RUN.file}; give a folder that embrew train wrote")
    log = read_json(file, keys=("scores",), kind=RUN)
    scores, curves, samples = log["scores"], log.get("curves", {}), log.get("samples", {})
    names = list(samples)  # in the order in which they were started
    if stage is not None and stage not in names:
        raise ValueError(
            f"{folder} has no stage {stage!r}; it has {', '.join(names) or 'none with a number of samples'}"
        )
    stages = [stage] if stage else names
    if not any(name in curves for name in stages):
        raise ValueError(
            f"{folder} was not evaluated during training; train with evaluation.at=log (and evaluation.dev=[FOLDER])"
        )
    with content_of(file):
        before = names[: names.index(stages[0])]
        start = next((name for name in reversed(before) if name in scores), "base")
        evaluations = [Evaluation(stages[0], 0, 0, 0.0, scores[start])] if start in scores else []
        seen = 0
        for name in stages:
            a_step, an_epoch = samples[name]["a_step"], samples[name]["an_epoch"]
            points = [(point["step"], point["scores"]) for point in curves.get(name) or []]
            steps = samples[name].get("steps", points[-1][0] if points else 0)
            if not points and name in scores:
                points = [(steps, scores[name])]
            evaluations += [
                Evaluation(name, step, seen + step * a_step, round(step * a_step / an_epoch, 4), values)
                for step, values in points
            ]
            seen += steps * a_step
    return Curve(str(folder), tuple(evaluations), log.get("sets", {}))


def pareto_front(
    points: Iterable[Point], cost: Callable[[Point], float], score: Callable[[Point], float]
) -> list[Point]:
    """Return the points whose score no other reaches at the same cost or less, by cost; of equal ones, the first."""
    front, best = [], float("-inf")
    for point in sorted(points, key=lambda point: (cost(point), -score(point))):
        if score(point) > best:
            best = score(point)
            front.append(point)
    return front


def pareto(curves: Iterable[Curve]) -> list[tuple[str, Evaluation]]:
    """Return the Pareto front of all runs, by samples; of equal evaluations, the first run's."""
    evaluations = [(curve.name, evaluation) for curve in curves for evaluation in curve.evaluations]
    return pareto_front(evaluations, lambda entry: entry[1].samples, lambda entry: entry[1].score)


def as_rows(curves: Sequence[Curve]) -> list[dict[str, str | float | bool]]:
    """Return one row per evaluation: run, stage, steps, samples, epochs, whether on the Pareto front, all scores."""
    front = [(name, id(evaluation)) for name, evaluation in pareto(curves)]
    return [
        {
            "run": curve.name,
            **{name: getattr(evaluation, name) for name in ("stage", "step", "samples", "epochs")},
            "pareto": (curve.name, id(evaluation)) in front,
            **evaluation.scores,
        }
        for curve in curves
        for evaluation in curve.evaluations
    ]
