"""Dropout of a model: probabilities that families keep as numbers, or as modules."""

from __future__ import annotations

from typing import Any

from torch import nn

ATTENTION = ("attention_dropout", "attn_dropout")  # of an attention layer; OPT's is named `dropout`


def set_attention_dropout(inner: nn.Module, probability: float) -> None:
    """Set the dropout on attention weights in every layer (SimCSE's noise).

    Raises:
        ValueError: the family has no such dropout.
    """
    found = 0
    for module in inner.modules():
        names = [name for name in ATTENTION if hasattr(module, name)]
        if not names and "Attention" in type(module).__name__ and isinstance(getattr(module, "dropout", None), float):
            names = ["dropout"]
        for name in names:
            held: Any = getattr(module, name)
            if isinstance(held, nn.Dropout):
                held.p = float(probability)
            elif isinstance(held, int | float):
                setattr(module, name, float(probability))
            else:
                continue
            found += 1
    if not found and probability:
        raise ValueError(f"{type(inner).__name__} has no attention dropout; use lora_dropout instead")


def probabilities(module: nn.Module) -> list[str]:
    """Attributes of a module that are dropout probabilities, or those of skipping a layer (`layerdrop`)."""
    own = ["p"] if isinstance(module, nn.Dropout) else []
    return own + [name for name, value in vars(module).items() if "drop" in name and type(value) is float]
