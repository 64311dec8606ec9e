"""Measure whether a model gives the texts of a packed row the states that each has in a padded row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from embrew.modeling.model.attention import Attention
from embrew.modeling.model.layers import view
from embrew.modeling.model.packed import PackedRows
from embrew.modeling.model.positions import max_positions
from embrew.modeling.model.prefix import begin, follow
from embrew.modeling.model.reach import FAILED, at_rest
from embrew.modeling.text.tokens import Row, Segment, Tokens

LENGTHS = (9, 14, 7)
FILLER = 64  # tokens of further texts, so that the packed row is longer than the model has positions
PREFIX = 3
logger = logging.getLogger(__name__)


def keeps_apart(
    inner: Any,
    attention: Attention,
    padded: Callable[[Tensor, Tokens], Tensor],
    pack: Callable[[Tokens, int], PackedRows | None],
    *,
    longest: int,
    shares: bool,
    more: tuple[int, ...],
) -> bool:
    """Return whether packed rows have the states of padded ones, and with gradients enabled also their gradients.

    A change of one text must not move another at all, in either direction, nor may a gradient reach it.

    Args:
        inner: the model without its head.
        attention: the pattern.
        padded: from embeddings and tokens of a padded batch to its states.
        pack: from a padded batch, and how many positions it follows, to a packed row.
        longest: tokens of one more text, beyond a sliding window; 0: none.
        shares: the texts have a prefix, whose keys and values are computed once.
        more: tokens of further texts, for one measurement each.
    """
    prefix = PREFIX if shares else 0
    device = inner.device.type
    on = torch.is_autocast_enabled(device)
    uncached = torch.autocast(device, dtype=torch.get_autocast_dtype(device), enabled=on, cache_enabled=False)
    try:
        with at_rest(inner), uncached:
            probes = [_tokens(inner, attention, longest, prefix, count) for count in more]
            return all(_Probe(inner, attention, padded, pack, tokens, prefix).passes() for tokens in probes)
    except torch.OutOfMemoryError:
        raise
    except (*FAILED, ImportError, AssertionError):
        logger.debug("%s cannot pack rows under %s", type(inner).__name__, attention, exc_info=True)
        return False


class _Probe:
    def __init__(
        self,
        inner: Any,
        attention: Attention,
        padded: Callable[[Tensor, Tokens], Tensor],
        pack: Callable[[Tokens, int], PackedRows | None],
        tokens: Tokens,
        prefix: int,
    ) -> None:
        self.inner, self.attention, self.padded, self.pack, self.prefix = inner, attention, padded, pack, prefix
        self.tokens = tokens
        self.real = self.tokens.attention_mask.bool()
        self.real[:, :prefix] = False

    def passes(self) -> bool:
        tokens = self.tokens
        embedded = self._embedded(tokens).detach().requires_grad_(torch.is_grad_enabled())
        wanted, found = self.padded(embedded, tokens), self._packed(embedded)
        if not self._close(found, wanted, 1.0):
            return False
        if torch.is_grad_enabled() and not self._same_gradients(embedded, wanted, found):
            return False
        with torch.no_grad():
            return all(self._moves_alone(text, found) for text in range(len(LENGTHS)))

    def _same_gradients(self, embedded: Tensor, wanted: Tensor, found: Tensor) -> bool:
        of = torch.linspace(-1, 1, found.shape[-1], device=found.device)
        loss = [((states.float() * of) * self.real[..., None]).sum() for states in (wanted, found)]
        ours, theirs = (torch.autograd.grad(value, embedded, retain_graph=True)[0] for value in reversed(loss))
        alone = [
            torch.autograd.grad(
                (found[text].float() * of * self.real[text][:, None]).sum(), embedded, retain_graph=True
            )
            for text in range(len(LENGTHS))
        ]
        apart = all(not _others(grad, text)[:, self.prefix :].any() for text, (grad,) in enumerate(alone))
        return apart and self._close(ours, theirs, 2.0)

    def _moves_alone(self, text: int, before: Tensor) -> bool:
        ids = self.tokens.input_ids.clone()
        ids[text, self.prefix :] = (ids[text, self.prefix :] + 1) % len(self.inner.get_input_embeddings().weight)
        after = self._packed(self._embedded(Tokens(ids, self.tokens.segment_ids)))
        moved = not torch.equal(after[text], before[text])
        return moved and torch.equal(_others(after, text), _others(before, text))

    def _embedded(self, tokens: Tokens) -> Tensor:
        return self.inner.get_input_embeddings()(tokens.input_ids).to(self.inner.dtype)

    def _packed(self, embedded: Tensor) -> Tensor:
        """Return the states of the packed row as padded rows, with zeros at a prefix."""
        seen = view(self.inner, is_causal=self.attention.is_causal is not False)
        rest = Tokens(self.tokens.input_ids[:, self.prefix :], self.tokens.segment_ids[:, self.prefix :])
        rows = self.pack(rest, self.prefix)
        if rows is None:
            raise ValueError("the pattern cannot be expressed")
        if not self.prefix:
            return rows.run(seen, embedded)
        layers = begin(seen, embedded[:1, : self.prefix]).layers
        states = rows.run(seen, embedded[:, self.prefix :], **follow(layers))
        return torch.nn.functional.pad(states, (0, 0, self.prefix, 0))

    def _close(self, ours: Tensor, theirs: Tensor, times: float) -> bool:
        device = self.inner.device.type
        exact = self.inner.dtype == torch.float32 and not torch.is_autocast_enabled(device)
        rounded = device == "cuda" and torch.backends.cuda.matmul.fp32_precision not in ("ieee", "none")
        allowed = times * (5e-2 if not exact else 5e-3 if rounded else 1e-4)
        ours, theirs = ours[self.real].float(), theirs[self.real].float()
        return bool((ours - theirs).abs().max() <= allowed * theirs.abs().max())  # false for NaN, too


def _others(states: Tensor, text: int) -> Tensor:
    return torch.cat([states[:text], states[text + 1 :]])


def _tokens(inner: Any, attention: Attention, longest: int, prefix: int, more: int) -> Tokens:
    """Return a padded batch of texts with memory, and a target where the pattern has one."""
    words, positions = len(inner.get_input_embeddings().weight), max_positions(inner)
    lengths = [*LENGTHS, *([longest] if longest else [])]
    enough = sum(lengths) + more
    while sum(lengths) < enough or sum(lengths) <= positions < float("inf"):
        lengths.append(int(min(FILLER, positions)))
    target = 2 if attention.bottleneck or attention.hide else 0
    rows = []
    for number, length in enumerate(lengths):
        ids = ((torch.arange(length) * 7919 + 104729 * (number + 1)) % words).tolist()
        ids[:prefix] = list(range(1, prefix + 1))
        middle = length - max(1, prefix) - 2 - target
        parts = (Segment.PROMPT, max(1, prefix)), (Segment.TEXT, middle), (Segment.MEMORY, 2), (Segment.TARGET, target)
        rows.append(Row(ids, [int(segment) for segment, count in parts for _ in range(count)]))
    return Tokens.pad(rows).to(inner.device)
