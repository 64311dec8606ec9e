"""Evaluation within a stage: steps, scores, learning curve, best step, early stopping; the share of the gap closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

import torch
from transformers import TrainingArguments

from embrew.distributed import from_main_process
from embrew.encoder import Encoder
from embrew.files.formats import GAP, GAP_OTHER, GUARD
from embrew.methods import Objective
from embrew.methods.base import DataRow
from embrew.methods.compression import Compression
from embrew.methods.gap import Gap, rows_that_fit
from embrew.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

Scores = dict[str, float]
Evaluate = Callable[[Encoder], Scores]


@runtime_checkable
class EvaluateSets(Protocol):
    """An `Evaluate` with named sets; `embrew.evaluation.dev.dev_sets` returns one."""

    @property
    def metrics(self) -> list[str]:
        """Names of the scores that can choose the best step."""

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split, metric, sha256 and, once known, size of each set, by the name of its score."""

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
    sets = [name for name in scores if name == "dev" or name.startswith(GUARD)]
    worse = [name for name in sets if name in base and scores[name] < base[name]]
    if worse:
        drops = [f"{name.removeprefix(GUARD)} {base[name]:.3f} → {scores[name]:.3f}" for name in worse]
        parts.append(f"got worse: {', '.join(drops)}")
    return "  ".join(parts)


def gap_words(share: float, other_share: float) -> str:
    """Return the share of the gap closed in words.

    >>> gap_words(0.231, -0.05)
    "share of the gap closed 0.23 (another text's memory −0.05)"
    """
    return f"share of the gap closed {signed(share)} (another text's memory {signed(other_share)})"


def signed(share: float) -> str:
    """Return a share with two digits and a minus sign."""
    return f"{share:.2f}".replace("-", "−")


EvaluationPoints = Literal["log"] | Sequence[int]


def evaluation_steps(points: EvaluationPoints, *, last: int, per_step: int) -> list[int]:
    """Return the optimiser steps after which an encoder is scored; the last step is always one of them.

    Args:
        points: `log`: 1, 2, 4, 8, …; or numbers of samples: each is scored after the first step that has seen as many.
        last: number of steps.
        per_step: samples per optimiser step.

    Examples:
        >>> evaluation_steps("log", last=10, per_step=32)
        [1, 2, 4, 8, 10]
        >>> evaluation_steps([32, 100, 5000], last=10, per_step=32)
        [1, 4, 10]
    """
    if points == "log":
        steps = [2**i for i in range(last.bit_length())]
    else:
        steps = [-(-int(samples) // per_step) for samples in points]
    return sorted({step for step in steps if step < last} | {last})


def samples_per_step(args: TrainingArguments) -> int:
    """Return the rows per optimiser step, over all processes."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


class GapPoint(TypedDict):
    """Shares of the gap closed after a number of steps of a stage, as in `run.json`."""

    step: int
    share: float
    other: float


class Point(TypedDict):
    """Scores after a number of steps of a stage."""

    step: int
    scores: Scores


@dataclass(frozen=True, kw_only=True)
class StageEvaluation:
    """The evaluation of a stage while it is trained.

    Attributes:
        score: function that returns the scores of the current weights; called in the first process only.
        report: function that is called after each evaluation with the curve and the number of steps of the stage.
        metric: name of the score whose maximum, the first among equals, is the best step. None: the last step is kept.
        patience: number of evaluations without a better score after which training stops early; None: it does not.
        points: steps of evaluations, see `evaluation_steps`; None: at a fixed interval.
    """

    score: Callable[[], Scores]
    report: Callable[[list[Point], int], None]
    metric: str | None
    patience: int | None = None
    points: EvaluationPoints | None = None

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


def only_sets(curve: Iterable[Point]) -> list[Point]:
    """Return a curve with the scores of dev and guard sets only."""
    return [
        {
            "step": point["step"],
            "scores": {name: value for name, value in point["scores"].items() if name not in (GAP, GAP_OTHER)},
        }
        for point in curve
    ]


def check_metric(recipe: Recipe, evaluate: Evaluate | None, names: Sequence[str] | None) -> None:
    """Raise if a recipe evaluates within stages without `evaluate`, or chooses by a score that is not in `names`."""
    evaluation = recipe.evaluation
    if evaluation is None or (evaluation.every is None and evaluation.at is None):
        return
    if evaluate is None:
        setting = f"at={evaluation.at}" if evaluation.every is None else f"every={evaluation.every}"
        raise ValueError(f"the recipe has evaluation.{setting}, but train was called without evaluate=")
    if evaluation.every is not None and names is not None and evaluation.metric not in (*names, GAP):
        raise ValueError(f"evaluation.metric={evaluation.metric!r} is not a score; choose from {', '.join(names)}")


NO_TEXTS = "no texts are set aside, since there are fewer than 40"
TOO_LONG = (
    "{} of {} held-out texts are left out, since their context and target together have more than the {:g} tokens that "
    "the model was made for"
)
NO_GAP = "the whole context predicts the held-out texts no better than none does (losses {:.4g} and {:.4g})"
FEW = ", which are too few to be sure of it"
MARGIN = 0.05
"""A finished stage whose share is not this much above both controls, no memory (0) and another text's, is named.

A rule of thumb: about twice what the difference of the two shares varies over disjoint sets of 64 texts (nano,
distillation, one model). With fewer texts it varies more.
"""


class GapClosed:
    """Measures the share of the gap closed at the start of a compression stage, within it, and at its end.

    Args:
        name: name of the stage.
        gap: gap of the stage's held-out texts.
        record: the stage's entry in `run.json`, which is filled in: `texts` and `tokens`, numbers of held-out texts and
            of their scored tokens; `none` and `context`, losses without context and with all of it; `curve`, shares by
            a text's own memory (`share`) and by another text's (`other`), at the start, at each evaluation within the
            stage, and at the end; `end`, those of the weights that are saved.
        bfloat16: compute matrix products in bfloat16, as the stage does.
    """

    def __init__(self, name: str, gap: Gap, record: MutableMapping[str, Any], *, bfloat16: bool) -> None:
        self.name, self.gap, self.record, self.bfloat16 = name, gap, record, bfloat16

    def scores(self, encoder: Encoder) -> Scores:
        """Return the shares of the encoder as it is now, as scores of an evaluation within the stage."""
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=self.bfloat16):
            shares = self.gap.shares(encoder)
        return {GAP: shares.same_text, GAP_OTHER: shares.other_text}

    def add_curve(self, points: Iterable[Point]) -> None:
        """Replace the measurements after the start by those of a learning curve."""
        later = [gap_point(point["step"], point["scores"]) for point in points]
        self.record["curve"] = [*self.record["curve"][:1], *later]

    def finish(self, encoder: Encoder, steps: int, curve: Sequence[Point] = ()) -> None:
        """Record and log the shares of the weights that the stage ends with; warn if they say that it did not train.

        Args:
            encoder: encoder with these weights.
            steps: number of optimiser steps of these weights.
            curve: evaluations within the stage, of which one has these weights; without any, they are measured now.
        """
        if curve:
            self.add_curve(curve)
            end = gap_point(steps, next(point["scores"] for point in curve if point["step"] == steps))
        else:
            end = gap_point(steps, self.scores(encoder))
            self.record["curve"].append(end)
        self.record["end"] = end
        before, words = signed(self.record["curve"][0]["share"]), gap_words(end["share"], end["other"])
        logger.info("%s  %s, %s before training", self.name, words, before)
        texts = self.record["texts"]
        if end["share"] - max(end["other"], 0.0) < MARGIN:  # no memory at all, and another text's
            logger.warning(
                "%s  the memory tokens hardly help: %s, on %d texts%s; the stage is undertrained, or its learning rate "
                "is wrong (see docs/how-to/watch-training.md)",
                self.name,
                words,
                texts,
                FEW if texts < 20 else "",
            )


def measure_start(
    name: str,
    objective: Objective,
    rows: Sequence[DataRow],
    encoder: Encoder,
    run: MutableMapping[str, Any],
    *,
    bfloat16: bool,
    chooses_step: bool = False,
) -> GapClosed | None:
    """Return what measures a stage, with the first measurement made; None in all processes but the first.

    None too where nothing can be measured, for a reason that is logged, and for other objectives than compression.
    All processes must call.

    Args:
        name: name of the stage.
        objective: objective of the stage, set up for the encoder.
        rows: held-out rows.
        encoder: encoder that the stage starts from; no weights are sharded.
        run: content of `run.json`: `gap` gets an entry for the stage.
        bfloat16: as of `GapClosed`.
        chooses_step: whether the best step is chosen by the share.

    Raises:
        ValueError: with `chooses_step`, nothing can be measured.
    """
    run.get(GAP, {}).pop(name, None)  # of an earlier attempt
    measured: list[GapClosed] = []

    def measure() -> None:
        assert isinstance(objective, Compression)
        reason, (short_rows, limit) = NO_TEXTS, rows_that_fit(objective, rows, encoder)
        if len(short_rows) < len(rows):
            reason = TOO_LONG.format(len(rows) - len(short_rows), len(rows), limit)
        if len(short_rows) > 1:
            if len(short_rows) < len(rows):
                logger.info("%s  %s", name, reason)
            with torch.autocast(encoder.device.type, torch.bfloat16, enabled=bfloat16):
                gap = Gap.measure(objective, short_rows, encoder)
            record = run.setdefault(GAP, {})[name] = gap.facts
            reason = NO_GAP.format(gap.context, gap.none)
            if gap.exists:
                measured.append(GapClosed(name, gap, record, bfloat16=bfloat16))
                first = gap_point(0, measured[0].scores(encoder))
                record["curve"] = [first]
                words = gap_words(first["share"], first["other"])
                logger.info("%s  %s, on %d held-out texts, before training", name, words, gap.counts["texts"])
                return
        if chooses_step:
            raise ValueError(f"stage {name}: no share of the gap closed: {reason}; choose another evaluation.metric")
        logger.info("%s  no share of the gap closed is measured: %s", name, reason)

    if objective.held_out:
        from_main_process(measure)
    return measured[0] if measured else None


def gap_point(step: int, scores: Scores) -> GapPoint:
    """Return the shares among the scores of an evaluation after `step` steps."""
    return {"step": step, "share": scores[GAP], "other": scores[GAP_OTHER]}
