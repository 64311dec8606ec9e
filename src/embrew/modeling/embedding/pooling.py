"""From token states to one vector a text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from embrew.modeling.embedding.latent import LatentAttention
from embrew.modeling.text.tokens import Segment, Tokens

PoolingMode = Literal["cls", "last", "mean", "weighted_mean", "concat"]
Over = Literal["all", "text", "echo", "memory"]
MODES: tuple[PoolingMode, ...] = ("cls", "last", "mean", "weighted_mean", "concat")
OVERS: tuple[Over, ...] = ("all", "text", "echo", "memory")
SEGMENTS = {"text": Segment.TEXT, "echo": Segment.ECHO, "memory": Segment.MEMORY}


@dataclass(frozen=True)
class Pooling:
    """`cls` (the first) | `last` | `mean` | `weighted_mean` (SGPT) of the states of one segment, or of all of them.

    `concat` puts the states of k memory tokens behind each other, in their order: k times the dimensions of a state.
    Cosines of such vectors are means of the cosines of single tokens, weighted by the lengths of their states.

    A text without any position to pool (an empty text pooled over `text`) gives the zero vector, which has cosine 0
    with everything, as stock Sentence-Transformers gives it.

    Attributes:
        slots: with `over="memory"`, which of the memory tokens are pooled, counted from 0; None: all of them.
        latents: states pass through a `LatentAttention` with so many latents first (NV-Embed); None: they do not.
        heads: its attention heads.
        head_width: width of a head; None: that of a state.
    """

    mode: PoolingMode = "last"
    over: Over = "all"
    slots: tuple[int, ...] | None = None
    latents: int | None = None
    heads: int | None = None
    head_width: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"pooling mode={self.mode!r}; choose from {', '.join(MODES)}")
        if self.over not in OVERS:
            raise ValueError(f"pooling over={self.over!r}; choose from {', '.join(OVERS)}")
        if self.latents is None and (self.heads or self.head_width):
            raise ValueError("pooling heads and head_width belong to latents; give latents too, or leave them out")
        if self.mode == "cls" and self.over != "all":
            raise ValueError(f"pooling mode=cls over={self.over!r}; CLS stands before everything, so pool over all")
        if self.mode == "concat" and self.over != "memory":
            raise ValueError(
                f"pooling mode=concat over={self.over!r}; only memory tokens are of one number in all texts, so set "
                "over: memory, or mode: mean"
            )
        if self.slots is not None:
            object.__setattr__(self, "slots", tuple(self.slots))  # JSON has lists only
            if self.over != "memory":
                raise ValueError(f"pooling slots={self.slots} over={self.over!r}; slots choose among memory tokens")

    def check(self, memory_tokens: int) -> None:
        """Raise where an encoder with so many memory tokens has nothing to pool, or lacks one of the slots."""
        if self.over == "memory" and not memory_tokens:
            raise ValueError(
                "pooling over=memory needs memory tokens; set memory_tokens and put {memory} in the template"
            )
        if self.slots is not None and not (self.slots and set(self.slots) <= set(range(memory_tokens))):
            raise ValueError(f"pooling slots={self.slots}; choose one or more from 0 to {memory_tokens - 1}")

    def dimensions(self, width: int, memory_tokens: int) -> int:
        """Dimensions of what is pooled from states of a width."""
        if self.mode != "concat":
            return width
        return width * (memory_tokens if self.slots is None else len(set(self.slots)))

    def head(self, width: int) -> LatentAttention | None:
        """The trained part that these settings ask for, new, for states of a width."""
        if self.latents is None:
            return None
        return LatentAttention(width, latents=self.latents, heads=self.heads or 8, head_width=self.head_width)

    def as_dict(self) -> dict[str, Any]:
        """The settings, for JSON; what is not set is not there."""
        values = {**asdict(self), "slots": None if self.slots is None else list(self.slots)}
        return {key: value for key, value in values.items() if value is not None}

    def positions(self, tokens: Tokens) -> Tensor:
        """`(batch, tokens)` bool: what is pooled (for `last`, what the last is taken from)."""
        if self.over == "all":
            return tokens.attention_mask.bool()
        chosen = tokens.where(SEGMENTS[self.over])
        if self.slots is not None:
            slot = chosen.long().cumsum(-1) - 1
            chosen = chosen & torch.isin(slot, torch.tensor(self.slots, device=slot.device))
        return chosen

    def weights(self, tokens: Tokens) -> Tensor:
        """`(batch, tokens)` float32 weights that sum to 1 a row (0 where nothing is pooled).

        What is concatenated counts alike.
        """
        chosen = self.positions(tokens)
        count = chosen.long().cumsum(-1)
        if self.mode == "cls":
            return (chosen & (count == 1)).float()
        if self.mode == "last":
            return (chosen & (count == count[:, -1:])).float()
        weights = (chosen * count).float() if self.mode == "weighted_mean" else chosen.float()
        return weights / weights.sum(-1, keepdim=True).clamp(min=1.0)

    def __call__(self, states: Tensor, tokens: Tokens, before: Tensor | None = None) -> Tensor:
        """Pool `states` `(batch, tokens, hidden)` to float32 `(batch, dimensions)`; a row must be one text.

        `before` `(1, count, hidden)` are states of the first positions, which all rows share; `states` follow them.
        """
        if tokens.document_ids is not None:
            raise ValueError("pooling gives one vector a row, and these rows are packed; pad them instead")
        with torch.autocast(states.device.type, enabled=False):
            count = 0 if before is None else before.shape[1]
            if self.mode == "concat":
                return states[self.positions(tokens)[:, count:]].float().reshape(len(states), -1)
            weights = self.weights(tokens)
            if before is None:
                return torch.einsum("bt,bth->bh", weights, states.float())
            rest = torch.einsum("bt,bth->bh", weights[:, count:], states.float())
            return rest if self.mode == "last" else rest + weights[:, :count] @ before[0].float()
