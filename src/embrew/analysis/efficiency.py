"""Learning efficiency: scores by samples, steps and epochs, from the logs of training runs.

*Following the Autoregressive Nature of LLM Embeddings via Compression and Alignment* compares methods by score against
samples seen and against epochs (Fig. 3) and by the Pareto front of samples and score (Fig. 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embrew.files import formats
from embrew.files.reading import content_of, read_json

RUN = formats.RUN.file


@dataclass(frozen=True)
class Moment:
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


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run in order, the first before training; `sets` describes the evaluation sets by name."""

    name: str
    moments: tuple[Moment, ...]
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def scored_on(self, metric: str) -> str:
        """Return the sets of a score with split and size; `unknown` where the run names none."""
        wanted = [name for name in self.sets if metric == name or (metric == "dev" and not name.startswith("guard/"))]
        said = [
            f"{name} {self.sets[name]['split']}, {self.sets[name].get('size', 'size unknown')}"
            for name in wanted
            if name not in ("alignment", "uniformity")
        ]
        return "; ".join(said) or "unknown"

    def best(self, metric: str) -> float:
        """Return the highest score."""
        return max(moment.scores[metric] for moment in self.moments)

    def passes(self, score: float, metric: str) -> Moment | None:
        """Return the first evaluation with a score above `score`, without interpolation."""
        return next((moment for moment in self.moments if moment.scores[metric] > score), None)


def read_curve(folder: str | Path, *, name: str | None = None, stage: str | None = None) -> Curve:
    """Read the curve of a run that was evaluated during training (`evaluation.at` or `every` in its recipe).

    Args:
        folder: output folder of `embrew train`.
        name: name of the run; default: the folder's name.
        stage: read this stage only, with samples counted from its start. Default: all stages in order; of a stage that
            was not evaluated during training, the final scores.

    Raises:
        FileNotFoundError: the folder has no `run.json`.
        ValueError: no such stage, or it was not evaluated during training.
    """
    file = Path(folder) / RUN
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no {RUN}; give a folder that embrew train wrote")
    log = read_json(file, keys=("scores",), kind=formats.RUN)
    scores, curves, samples = log["scores"], log.get("curves", {}), log.get("samples", {})
    names = list(samples)  # in the order in which they were started
    if stage is not None and stage not in names:
        raise ValueError(
            f"{folder} has no stage {stage!r}; it has {', '.join(names) or 'none with a number of samples'}"
        )
    if not any(name in curves for name in ([stage] if stage else names)):
        raise ValueError(
            f"{folder} was not evaluated during training; train with evaluation.at=log (and evaluation.dev=[FOLDER])"
        )
    with content_of(file):
        before = names[: names.index(stage)] if stage else []
        start = next((name for name in reversed(before) if name in scores), "base")
        first = stage or names[0]
        moments = [Moment(first, 0, 0, 0.0, scores[start])] if start in scores else []
        seen = 0
        for current in [stage] if stage else names:
            a_step, an_epoch = samples[current]["a_step"], samples[current]["an_epoch"]
            points = curves.get(current) or []
            for point in points:
                step = point["step"]
                moments.append(
                    Moment(current, step, seen + step * a_step, round(step * a_step / an_epoch, 4), point["scores"])
                )
            steps = samples[current].get("steps", points[-1]["step"] if points else 0)
            if not points and current in scores:
                epochs = round(steps * a_step / an_epoch, 4)
                moments.append(Moment(current, steps, seen + steps * a_step, epochs, scores[current]))
            seen += steps * a_step
    return Curve(name or Path(folder).name, tuple(moments), log.get("sets", {}))


def check_metric(curves: Sequence[Curve], metric: str) -> None:
    """Raise if a run has no score of that name."""
    for curve in curves:
        for moment in curve.moments:
            if metric not in moment.scores:
                raise ValueError(f"{curve.name} has no score {metric!r}; choose from {', '.join(moment.scores)}")


def pareto(curves: Iterable[Curve], metric: str) -> list[tuple[str, Moment]]:
    """Return the Pareto front of all runs, by samples: no other evaluation has an equal score with as few samples.

    Of equal ones, the first run's is returned.
    """
    every = [(curve.name, moment) for curve in curves for moment in curve.moments]
    every.sort(key=lambda one: (one[1].samples, -one[1].scores[metric]))
    front: list[tuple[str, Moment]] = []
    for name, moment in every:
        if not front or moment.scores[metric] > front[-1][1].scores[metric]:
            front.append((name, moment))
    return front


def as_rows(curves: Sequence[Curve], metric: str) -> list[dict[str, Any]]:
    """Return one row per evaluation: run, stage, steps, samples, epochs, whether on the Pareto front, all scores."""
    front = {(name, moment.samples, moment.step) for name, moment in pareto(curves, metric)}
    return [
        {
            "run": curve.name,
            "stage": moment.stage,
            "step": moment.step,
            "samples": moment.samples,
            "epochs": moment.epochs,
            "pareto": (curve.name, moment.samples, moment.step) in front,
            **moment.scores,
        }
        for curve in curves
        for moment in curve.moments
    ]
