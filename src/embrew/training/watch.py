"""Evaluation within a stage: the curve of scores, its best step, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, runtime_checkable

from embrew.files.formats import GUARD
from embrew.modeling.encoder import Encoder
from embrew.training.curves import At

Scores = dict[str, float]
Evaluate = Callable[[Encoder], Scores]


@runtime_checkable
class DevSets(Protocol):
    """An `Evaluate` that knows what it scores by; `embrew.evaluation.dev.dev_sets` makes one."""

    @property
    def metrics(self) -> list[str]:
        """Names of the scores that a best step can be chosen by."""

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split and metric of each set, and its size once it is known, by the name of its score."""

    def __call__(self, encoder: Encoder) -> Scores:
        """Scores of an encoder."""

    def texts(self) -> Mapping[str, Iterable[str]]:
        """The texts of each set."""


class Point(TypedDict):
    """Scores after so many steps of a stage."""

    step: int
    scores: Scores


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a stage is watched.

    Attributes:
        score: the scores of the weights as they are; asked of the first process only.
        report: told the curve after each evaluation, and how many steps the stage has.
        metric: the score that the best step has the highest of; of equal ones, the first. None: nothing is chosen, the
            weights of the last step stay.
        patience: stop after so many evaluations without a better one.
        at: where it is scored, if not every so many steps: see `curves.steps_at`.
    """

    score: Callable[[], Scores]
    report: Callable[[list[Point], int], None]
    metric: str | None
    patience: int | None = None
    at: At | None = None

    def best(self, curve: Sequence[Point]) -> Point:
        """The point whose weights are kept: the best one (the first of equals), or the last where none is chosen."""
        metric = self.metric
        return curve[-1] if metric is None else max(curve, key=lambda point: point["scores"][metric])

    def is_over(self, curve: Sequence[Point]) -> bool:
        """Whether patience is at its end."""
        if self.patience is None or self.metric is None or not curve:
            return False
        return len(curve) - 1 - curve.index(self.best(curve)) >= self.patience


def to_log(scores: Scores) -> dict[str, float]:
    """Scores under the names that the Trainer's log, and what reads it, give to evaluations."""
    return {f"eval_{name}": value for name, value in scores.items()}


def curve_of(log_history: Iterable[Mapping[str, Any]]) -> list[Point]:
    """The curve that a Trainer's log holds, which each checkpoint keeps: all that is known of a watched stage."""
    entries = [entry for entry in log_history if any(name.startswith("eval_") for name in entry)]
    return [
        {
            "step": int(entry["step"]),
            "scores": {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")},
        }
        for entry in entries
    ]


def in_words(scores: Mapping[str, float], base: Mapping[str, float]) -> str:
    """`dev 0.612 (base 0.588)  guard 0.701 (base 0.744)  got worse: STSB 0.744 → 0.701`.

    Named are the mean of the dev sets and each guard set that is below the base; alignment and uniformity, where they
    are asked for.
    """
    said = []
    for name in ("dev", "guard", "alignment", "uniformity"):
        if name in scores:
            before = f" (base {base[name]:.3f})" if name in base else ""
            said.append(f"{name} {scores[name]:.3f}{before}")
    worse = got_worse(scores, base)
    if worse:
        drops = [f"{name.removeprefix(GUARD)} {base[name]:.3f} → {scores[name]:.3f}" for name in worse]
        said.append(f"got worse: {', '.join(drops)}")
    return "  ".join(said)


def set_lines(about: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each set that scores are of: `dev set STSB: split dev, 1500 pairs, Spearman`."""
    lines = []
    for name, facts in about.items():
        what = f"guard set {name.removeprefix(GUARD)}" if name.startswith(GUARD) else f"dev set {name}"
        lines.append(f"{what}: split {facts['split']}, {facts.get('size', 'size unknown')}, {facts['metric']}")
    return lines


def got_worse(scores: Mapping[str, float], base: Mapping[str, float]) -> list[str]:
    """Of the dev sets' mean and the guard sets, those whose score is below the base's."""
    looked_at = [name for name in scores if name == "dev" or name.startswith(GUARD)]
    return [name for name in looked_at if name in base and scores[name] < base[name]]
