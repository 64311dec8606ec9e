"""Tensors that have a shape and no values: what a computation would hold in memory and compute, counted without it."""

from embrew.shaped.ledger import Ledger
from embrew.shaped.tensor import (
    Shaped,
    counting,
    fused_attention,
    has_values,
    is_counting,
    kind_of,
    shaped,
    shaped_modules,
    shaped_of,
)

__all__ = [
    "Ledger",
    "Shaped",
    "counting",
    "fused_attention",
    "has_values",
    "is_counting",
    "kind_of",
    "shaped",
    "shaped_modules",
    "shaped_of",
]
