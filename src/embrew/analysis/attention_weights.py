"""Read the attention weights of every layer, one layer at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from embrew.model.attention import Attention
from embrew.model.forward import forward
from embrew.model.layers import Wrapper, layers_of, with_layers, with_module
from embrew.text.tokens import Tokens

Read = Callable[[int, Tensor], None]


def read_attention(inner: Any, embedded: Tensor, tokens: Tokens, attention: Attention, read: Read) -> None:
    """Pass every layer's attention weights to `read`, one layer at a time, so that two are never in memory.

    Only eager attention returns weights: the forward pass runs on shallow copies of the layers, with the same modules
    and weights and a separate configuration; the model is not changed.

    Args:
        inner: the model without its head.
        embedded: `(batch, tokens, hidden)` input embeddings.
        tokens: the batch.
        attention: the attention pattern.
        read: takes the layer's number, counted from 1, and its weights `(batch, heads, tokens, tokens)`.

    Raises:
        ValueError: a layer's attention is under no name known here, or shows no weights.
    """
    config = copy.copy(inner.config)
    config._attn_implementation = "eager"
    seen = [0]

    def read_one(number: int, weights: Tensor) -> None:
        seen[0] = number
        read(number, weights)

    layers = [_tapped(layer, config, number, read_one) for number, layer in enumerate(layers_of(inner), start=1)]
    view = with_layers(inner, layers)
    view.config = config
    forward(view, embedded, tokens, attention, None)
    if seen[0] != len(layers):
        raise ValueError(f"{type(inner).__name__}: only {seen[0]} of {len(layers)} layers showed attention weights")


def _tapped(layer: nn.Module, config: Any, number: int, read: Read) -> nn.Module:
    """Return a layer whose attention is eager and shows its weights."""
    for path, module in layer.named_modules():
        if path and type(module).__name__.endswith("Attention") and hasattr(module, "config"):
            eager = copy.copy(module)
            eager.config = config
            replaced: nn.Module = with_module(layer, path, _Shown(eager, number, read))
            return replaced
    raise ValueError(f"{type(layer).__name__} has no module that is called …Attention and has a configuration")


class _Shown(Wrapper):
    """An attention module that passes its weights to a callback and returns none, so that they are not gathered."""

    def __init__(self, module: nn.Module, number: int, read: Read) -> None:
        super().__init__(module)
        self.number = number
        self.read = read

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the attention."""
        output, weights, *rest = self.wrapped(*args, **kwargs)
        if weights is None:
            raise ValueError(f"{type(self.wrapped).__name__} shows no attention weights")
        self.read(self.number, weights)
        return (output, None, *rest)
