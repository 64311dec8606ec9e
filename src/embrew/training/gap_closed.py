"""The share of the gap closed of a compression stage: measured, logged, kept in `run.json`.

Its entry there:
    texts, tokens: numbers of held-out texts and of their scored tokens.
    none, context: losses without context and with all of it.
    curve: shares by a text's own memory (`share`) and by another text's (`other`), at the start, at each evaluation
        within the stage, and at the end.
    end: those of the weights that are saved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import torch

from embrew.distributed import decided
from embrew.encoder import Encoder
from embrew.files.formats import GAP, GAP_OTHER
from embrew.methods import Objective
from embrew.methods.gap import Gap, held_out_of, rows_that_fit
from embrew.methods.llm2comp import Compression
from embrew.training.stage_evaluation import Point, Scores, gap_words, signed

logger = logging.getLogger(__name__)
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
    """Measures the share of the gap closed at the start of a stage, within it, and at its end.

    Args:
        name: of the stage.
        gap: of its held-out texts.
        record: the stage's entry in `run.json`, which is filled in.
        bfloat16: compute matrix products in bfloat16, as the stage does.
    """

    def __init__(self, name: str, gap: Gap, record: MutableMapping[str, Any], *, bfloat16: bool) -> None:
        self.name, self.gap, self.record, self.bfloat16 = name, gap, record, bfloat16

    def scores(self, encoder: Encoder) -> Scores:
        """Return the shares of the encoder as it is now, as scores of an evaluation within the stage."""
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=self.bfloat16):
            shares = self.gap.shares(encoder)
        return {GAP: shares.own, GAP_OTHER: shares.other}

    def add_curve(self, points: Iterable[Point]) -> None:
        """Replace the measurements after the start by those of a learning curve."""
        self.record["curve"] = [*self.record["curve"][:1], *(entry_of(one["step"], one["scores"]) for one in points)]

    def finish(self, encoder: Encoder, steps: int, curve: Sequence[Point] = ()) -> None:
        """Record and log the shares of the weights that the stage ends with; warn if they say that it did not train.

        Args:
            encoder: with these weights.
            steps: their number of optimiser steps.
            curve: evaluations within the stage, of which one has these weights; without any, they are measured now.
        """
        if curve:
            self.add_curve(curve)
            end = entry_of(steps, next(point["scores"] for point in curve if point["step"] == steps))
        else:
            end = entry_of(steps, self.scores(encoder))
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


def at_start(
    name: str,
    objective: Objective,
    rows: Sequence[dict[str, Any]],
    encoder: Encoder,
    run: MutableMapping[str, Any],
    *,
    bfloat16: bool,
    chooses: bool = False,
) -> GapClosed | None:
    """Return what measures a stage, with the first measurement made; None in all processes but the first.

    None too where nothing can be measured, for a reason that is logged, and for other objectives than compression.
    All processes must call.

    Args:
        name: of the stage.
        objective: set up for the encoder.
        rows: held-out rows.
        encoder: as the stage starts; no weights are sharded.
        run: the content of `run.json`: `gap` gets an entry for the stage.
        bfloat16: as of `GapClosed`.
        chooses: the best step is chosen by the share.

    Raises:
        ValueError: with `chooses`, nothing can be measured.
    """
    run.get(GAP, {}).pop(name, None)  # of an earlier attempt
    closed: list[GapClosed] = []

    def begin() -> None:
        assert isinstance(objective, Compression)
        why, (fit, most) = NO_TEXTS, rows_that_fit(objective, rows, encoder)
        if len(fit) < len(rows):
            why = TOO_LONG.format(len(rows) - len(fit), len(rows), most)
        if len(fit) > 1:
            if len(fit) < len(rows):
                logger.info("%s  %s", name, why)
            with torch.autocast(encoder.device.type, torch.bfloat16, enabled=bfloat16):
                gap = Gap.measure(objective, fit, encoder)
            record = run.setdefault(GAP, {})[name] = gap.facts
            why = NO_GAP.format(gap.context, gap.none)
            if gap.exists:
                closed.append(GapClosed(name, gap, record, bfloat16=bfloat16))
                first = entry_of(0, closed[0].scores(encoder))
                record["curve"] = [first]
                words = gap_words(first["share"], first["other"])
                logger.info("%s  %s, on %d held-out texts, before training", name, words, gap.counts["texts"])
                return
        if chooses:
            raise ValueError(f"stage {name}: no share of the gap closed: {why}; choose another evaluation.metric")
        logger.info("%s  no share of the gap closed is measured: %s", name, why)

    if held_out_of(objective):
        decided(begin)
    return closed[0] if closed else None


def entry_of(step: int, scores: Scores) -> dict[str, Any]:
    """Return an entry of `run.json`: the shares of an evaluation after `step` steps."""
    return {"step": step, "share": scores[GAP], "other": scores[GAP_OTHER]}
