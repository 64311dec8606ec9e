"""Attention patterns: the library's causal flag, or an explicit mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from embrew.settings.encoder import AttentionMode
from embrew.text.tokens import Segment, Tokens

TWO_CALLS = "embrew_bottleneck"  # sdpa that can also be called twice; see `embrew.model.kernels`
MODES: tuple[AttentionMode, ...] = get_args(AttentionMode)


def first_prompt(tokens: Tokens) -> Tensor:
    """Return `(batch, tokens)` bool: each row's first position, where it is not part of the text (BOS)."""
    real = tokens.attention_mask.bool()
    return real & (real.long().cumsum(1) == 1) & tokens.where(Segment.PROMPT)


@dataclass(frozen=True)
class Attention:
    """An attention pattern over segments.

    Query position i reads key position j iff both are real (or i = j), j is in the trunk or in i's own
    branch, the pair of segments is not hidden, and j <= i wherever the pair is causal.

    Attributes:
        mode: `causal`; `bidirectional`: every real position reads every real position; `memory_causal`: text
            bidirectional and blind to the memory, memory tokens causal (the printed form of LLM2Comp's Eq. 1).
        hide: pairs (reader, read) of segments that are hidden.
        bottleneck: a target reads the memory and itself only, so that all it knows of the text has passed through the
            memory; `visible`: it reads the row's first position too, where that is none of the text's (BOS, on which
            models rest their attention), and which causal attention lets know nothing; `strict`: not even that.
    """

    mode: AttentionMode = "causal"
    hide: tuple[tuple[Segment, Segment], ...] = ()
    bottleneck: Literal["visible", "strict"] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"attention={self.mode!r}; choose from {', '.join(MODES)}")
        if self.bottleneck and self.mode != "causal":
            raise ValueError(f"a bottleneck under {self.mode} attention: a text that reads its target lets it through")

    @property
    def is_causal(self) -> bool | None:
        """The library's flag for this pattern, or None where only a mask can say it."""
        if self.hide or self.bottleneck or self.mode == "memory_causal":
            return None
        return self.mode == "causal"

    def visible(self, tokens: Tokens, window: int | None = None) -> Tensor:
        """Return the pattern as `(batch, tokens, tokens)` bool: [b, i, j] is true where position i reads position j.

        Args:
            tokens: a batch.
            window: a sliding window in tokens, as the library applies it: the last `window` positions (itself
                included) where attention is causal, distances up to `window` where it is not.
        """
        segment_ids = tokens.segment_ids
        width = segment_ids.shape[1]
        at = torch.arange(width, device=segment_ids.device)
        reader, read = segment_ids[:, :, None], segment_ids[:, None, :]
        before = at[None, :, None] >= at[None, None, :]
        seen = (reader != Segment.PAD) & (read != Segment.PAD)
        if tokens.branch_ids is not None:
            read_branch = tokens.branch_ids[:, None, :]
            seen = seen & ((read_branch == 0) | (read_branch == tokens.branch_ids[:, :, None]))
        if self.mode == "causal":
            seen = seen & before
        elif self.mode == "memory_causal":
            seen = seen & (before | (read != Segment.MEMORY))
        if self.bottleneck:
            through = (read == Segment.MEMORY) | (read == Segment.TARGET)
            if self.bottleneck == "visible":
                through = through | first_prompt(tokens)[:, None, :]
            seen = seen & ((reader != Segment.TARGET) | through)
        for reading, hidden in self.hide:
            seen = seen & ~((reader == reading) & (read == hidden))
        if window is not None:
            place = at[None] if tokens.position_ids is None else tokens.position_ids
            distance = place[:, :, None] - place[:, None, :]
            seen = seen & (distance < window if self.mode == "causal" else distance.abs() <= window)
        return seen | (at[:, None] == at[None, :])

    @staticmethod
    def takes_mask(config: PreTrainedConfig) -> bool:
        """Return whether the model's attention kernel takes an explicit mask."""
        return (config._attn_implementation or "sdpa") in ("sdpa", TWO_CALLS, "eager", "flex_attention")

    def mask(self, tokens: Tokens, config: PreTrainedConfig, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Return the explicit mask in the form the model's attention kernel takes: `(batch, 1, tokens, tokens)`.

        Bool for sdpa; additive with the dtype's minimum for eager (which *adds* a bool mask as 0 and 1, silently
        wrong). For models with sliding layers it holds their window, per layer type where the family mixes types.

        Raises:
            ValueError: the kernel cannot take a mask (flash attention).
        """
        kernel = config._attn_implementation or "sdpa"
        if not self.takes_mask(config):
            raise ValueError(
                f"attn_implementation={kernel!r} takes no mask, which this attention pattern needs "
                f"({self}); use attn_implementation=sdpa"
            )

        def form(window: int | None) -> Tensor:
            seen = self.visible(tokens, window)[:, None]
            if kernel in ("sdpa", TWO_CALLS):
                return seen
            return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)

        window = getattr(config, "sliding_window", None) or None  # 0 says that there is none (Qwen2-MoE)
        if "sliding_attention" in (getattr(config, "layer_types", None) or []):
            return {"full_attention": form(None), "sliding_attention": form(window)}
        return form(window)
