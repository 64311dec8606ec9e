"""Run a model's layers as compiled functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from embrew.model.layers import layers_of

LIMIT = 64  # graphs of a layer: with or without gradient, adapter, mask, dropout; a single row and several
OPTIONS = {"fallback_random": True}  # dropout draws what it draws without compilation, from the same random state


@contextmanager
def compiled_layers(inner: Any) -> Iterator[None]:
    """Within this context, every layer of a model without its head is compiled, for any number of rows and tokens.

    Modules, weights and the names in state dicts stay as they are. Layers share their graphs. Dropout on a LoRA's input
    draws the same numbers as without compilation; on a CPU, dropout of attention weights draws others. Gradient caching
    and activation checkpointing replay both.
    """
    layers = layers_of(inner)
    with torch._dynamo.config.patch(recompile_limit=LIMIT, accumulated_recompile_limit=4 * LIMIT):
        for layer in layers:
            layer.compile(dynamic=True, options=OPTIONS)
        try:
            yield
        finally:
            for layer in layers:
                del layer._compiled_call_impl
