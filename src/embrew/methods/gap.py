"""Share of the gap closed: how much of what a context tells the frozen LM its memory tokens tell it too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import ITEM_WEIGHTS, Batch, DataRow
from embrew.methods.compression import Compression
from embrew.methods.frozen_decoder import memory_states
from embrew.model.attention import evaluating
from embrew.model.layers import known_positions
from embrew.text.tokens import Tokens

BATCH_ROWS = 8


class Shares(NamedTuple):
    """Shares of the gap closed: by a text's own memory, and by another text's."""

    same_text: float
    other_text: float


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The loss of held-out texts without their context and with all of it, and the share that memory tokens close.

    With L the objective's own loss, reduced as in training, but over all held-out texts:

        share = 1 − (L(memory) − L(context)) / (L(none) − L(context))

    `none`: the frozen LM reads BOS and the target only (EOS where there is no BOS: every row needs a first position).
    `context`: it reads the context as text in place of the memory; under `divergence: kl` the teacher does, so
    L(context) is 0 and the share is 1 − KL(memory) / KL(none). For a target that is the context itself, it reads the
    context as text and then again. A memory as good as the context has the share 1, one that tells nothing 0, and one
    that misleads less than 0.

    The control is another text's memory: each text gets the memory of the next one of the held-out texts, the last
    that of the first. A share near or below 0 says that the memory carries the text, not only its position or style.

    Attributes:
        objective: objective whose loss is measured.
        batches: held-out texts, as the objective collates them, with the weights of the loss.
        none: L(none).
        context: L(context).
        counts: numbers of texts and of scored tokens.
    """

    objective: Compression
    batches: Sequence[Batch]
    none: float
    context: float
    counts: dict[str, int]

    @classmethod
    def measure(cls, objective: Compression, rows: Sequence[DataRow], encoder: Encoder) -> Gap:
        """Measure the loss without and with the context, which do not change, since the original LM does not.

        Texts are split as training splits them with seed 0. No random numbers are drawn, and no process is waited for.

        Args:
            objective: set up for the encoder.
            rows: held-out rows; at least 2.
            encoder: encoder whose tokenizer, template and frozen LM are used; no weights are sharded.

        Raises:
            ValueError: fewer than 2 rows.
        """
        if len(rows) < 2:
            raise ValueError(f"{len(rows)} held-out rows; the control needs another text, so give 2 or more")
        groups = [rows[start : start + BATCH_ROWS] for start in range(0, len(rows), BATCH_ROWS)]
        batches = [_moved(objective.collate(group, encoder), encoder) for group in groups]
        counts = Counter[str]()
        for batch in batches:
            counts.update(objective.num_items(batch))
        weights = {name: 1.0 / max(count, 1) for name, count in counts.items()}
        batches = [{**batch, ITEM_WEIGHTS: weights} for batch in batches]
        without, full = (
            sum(
                _loss(objective, encoder, None, {**batch, **_readings(objective, group, encoder, context=context)})
                for group, batch in zip(groups, batches, strict=True)
            )
            for context in (False, True)
        )
        tokens = sum(count for name, count in counts.items() if name != "texts")
        sizes = {"texts": counts["texts"], "tokens": tokens}
        return cls(objective=objective, batches=batches, none=without, context=full, counts=sizes)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what does not change: numbers of texts and tokens, and both losses."""
        return {**self.counts, "none": self.none, "context": self.context}

    @property
    def exists(self) -> bool:
        """Whether the context lowers the loss; where it does not, there is no gap to close."""
        return self.none > self.context

    def shares(self, encoder: Encoder) -> Shares:
        """Return the shares that the encoder's memory closes now; its dropout is off, and no random number is drawn.

        Raises:
            ValueError: there is no gap; see `exists`.
        """
        if not self.exists:
            raise ValueError(f"the loss is {self.context:.4g} with the context and {self.none:.4g} without; no gap")
        with evaluating(encoder), torch.no_grad():
            memory = torch.cat([memory_states(encoder, batch["context"]) for batch in self.batches])
        sizes = [len(batch["context"]) for batch in self.batches]
        losses = [
            sum(
                _loss(self.objective, encoder, states, batch)
                for states, batch in zip(memories.split(sizes), self.batches, strict=True)
            )
            for memories in (memory, memory.roll(-1, 0))
        ]
        return Shares(*map(self.share, losses))

    def share(self, loss: float) -> float:
        """Return the share of the gap that a loss closes."""
        return 1.0 - (loss - self.context) / (self.none - self.context)


def rows_that_fit(objective: Compression, rows: Sequence[DataRow], encoder: Encoder) -> tuple[list[DataRow], float]:
    """Return the rows whose whole context and target the frozen LM can read in a row, and its maximum of tokens.

    Training reads the memory in place of the context, so that it may take longer texts than L(context) can be measured
    on.
    """
    limit, fit = known_positions(encoder.backbone.inner), []
    for row in rows:
        parts = objective.parts([row], encoder)
        target = max(len(targets[0].ids) for targets in parts.targets.values())
        if len(parts.uncompressed[0].ids) + target <= limit:
            fit.append(row)
    return fit, limit


def _loss(objective: Compression, encoder: Encoder, memory: Tensor | None, batch: Batch) -> float:
    """Return a batch's part of the loss of memory states `(batch, k, hidden)`; None: its rows have no SOFT position."""
    if memory is None:
        memory = torch.zeros(len(batch["context"]), 0, encoder.backbone.hidden_size, device=encoder.device)
    with evaluating(encoder), torch.no_grad(), encoder.backbone.frozen_lm() as lm:
        return float(sum(objective.decoder_losses(lm, memory, batch)))


def _readings(objective: Compression, rows: Sequence[DataRow], encoder: Encoder, *, context: bool) -> dict[str, Tokens]:
    """Return students that read the whole context as text, or BOS alone, in place of the memory."""
    parts = objective.parts(rows, encoder)
    before = parts.uncompressed if context else [encoder.template.start_row] * len(rows)
    students = {
        "student" + suffix: Tokens.pad([read + target for read, target in zip(before, targets, strict=True)])
        for suffix, targets in parts.targets.items()
    }
    return _moved(students, encoder)


def _moved(batch: Mapping[str, Tokens], encoder: Encoder) -> Batch:
    return {name: tokens.to(encoder.device) for name, tokens in batch.items()}
