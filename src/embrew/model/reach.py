"""Which positions a model reads, measured: change one token and see which states move."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from embrew.model.attention import Attention
from embrew.text.tokens import Segment, Tokens

WIDTH, MEMORY, PADDING = 6, 2, 3  # tokens of the probe, memory tokens among them, and padding after them
MOVED = 1e-6  # of the largest state
logger = logging.getLogger(__name__)
FAILED = (ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError, NotImplementedError)


def key_of(inner: Any, *more: Any) -> tuple[Any, ...]:
    """Return what decides how a model takes an attention pattern: class, kernel, settings of its configuration."""
    config = inner.config
    names = ("alibi", "use_bidirectional_attention", "sliding_window", "use_sliding_window")
    kinds = tuple(sorted(set(getattr(config, "layer_types", None) or [])))
    settings = tuple(getattr(config, name, None) for name in names)
    return type(inner), config._attn_implementation, kinds, settings, *more


def follows(
    inner: Any, attention: Attention, run: Callable[[Tensor, Tokens], Tensor], *, num_layers: int | None = None
) -> bool:
    """Return whether the states that `run` gives depend on each other as an attention pattern says.

    With and without right padding. A pattern that the model cannot take at all is not followed either.

    Args:
        inner: the model without its head.
        attention: the pattern.
        run: from embeddings `(batch, tokens, hidden)` and tokens to states `(batch, tokens, hidden)`.
        num_layers: how many layers it runs; all by default.
    """
    layers = num_layers or int(inner.config.num_hidden_layers)
    window = getattr(inner.config, "sliding_window", None)
    width = max(2, min(WIDTH, window)) if isinstance(window, int) and window > 0 else WIDTH
    states_by_padding: list[Tensor] = []
    try:
        with at_rest(inner), torch.no_grad(), torch.autocast(inner.device.type, enabled=False):
            for padding in (0, PADDING):
                tokens = _probe(inner, attention, width, padding)
                states = run(inner.get_input_embeddings()(tokens.input_ids), tokens)[:, :width].float()
                moved = (states[1:] - states[:1]).abs().amax(-1).T  # [i, j]: state i under a change of token j
                reads = attention.visible(tokens)[0, :width, :width].double()
                reaches = torch.linalg.matrix_power(reads, layers) > 0
                scale, noise = states[0].abs().max(), max(MOVED, 4 * torch.finfo(inner.dtype).eps)
                if not torch.isfinite(states).all():
                    return False
                if not ((moved[reaches] > MOVED * scale).all() and (moved[~reaches] <= noise * scale).all()):
                    return False
                states_by_padding.append(states[0])
    except torch.OutOfMemoryError:
        raise
    except FAILED:
        logger.debug("%s cannot take %s", type(inner).__name__, attention, exc_info=True)
        return False
    same = 1e-4 if inner.dtype == torch.float32 else 5e-2
    return bool((states_by_padding[0] - states_by_padding[1]).abs().max() <= same * states_by_padding[0].abs().max())


def _probe(inner: Any, attention: Attention, width: int, padding: int) -> Tokens:
    """Return a batch: a row of tokens, then the same row with its first, second, … token changed."""
    vocabulary = inner.get_input_embeddings().weight.shape[0]
    some = torch.linspace(0.05 * vocabulary, 0.6 * vocabulary, width).long()
    ids = some.repeat(width + 1, 1)
    ids[1:][torch.eye(width, dtype=torch.bool)] = (some + max(1, int(0.3 * vocabulary))) % vocabulary
    segments = torch.full_like(ids, int(Segment.TEXT))
    segments[:, -MEMORY if width > MEMORY else width :] = int(Segment.MEMORY)
    if attention.bottleneck:
        segments[:, -1] = int(Segment.TARGET)
    pad = torch.zeros(width + 1, padding, dtype=torch.long)
    return Tokens(torch.cat([ids, pad], 1), torch.cat([segments, pad], 1)).to(inner.device)


@contextmanager
def at_rest(module: torch.nn.Module) -> Iterator[None]:
    """Within this context, a module is in evaluation mode; the training flags of its parts are restored."""
    flags = [(part, part.training) for part in module.modules() if part.training]
    try:
        for part, _ in flags:
            part.training = False
        yield
    finally:
        for part, _ in flags:
            part.training = True
