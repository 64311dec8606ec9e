"""The probabilities of dropout in a model: read, and set for attention weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from embrew.model.attention import evaluating

ATTENTION = ("attention_dropout", "attn_dropout")  # of an attention layer; OPT's is named `dropout`


def set_attention_dropout(inner: Any, probability: float) -> None:
    """Set the dropout on attention weights in every layer (SimCSE's noise), and measure that it has an effect.

    Raises:
        ValueError: the family has no such dropout, or does not apply it with this attention kernel.
    """
    held = [(module, name) for module in inner.modules() for name in _names(module)]
    if probability and not held:
        raise ValueError(f"{type(inner).__name__} has no attention dropout; use lora_dropout instead")
    if probability and not _has_effect(inner, held):
        _assign(held, 0.0)
        raise ValueError(
            f"{type(inner).__name__} does not apply its attention dropout with attn_implementation="
            f"{inner.config._attn_implementation}; use lora_dropout instead"
        )
    _assign(held, probability)


def _assign(held: list[tuple[nn.Module, str]], probability: float) -> None:
    for module, name in held:
        dropout = getattr(module, name)
        if isinstance(dropout, nn.Dropout):
            dropout.p = float(probability)
        else:
            setattr(module, name, float(probability))


def _names(module: nn.Module) -> list[str]:
    names = list(ATTENTION)
    if "Attention" in type(module).__name__ and isinstance(getattr(module, "dropout", None), float):
        names.append("dropout")
    return [name for name in names if isinstance(getattr(module, name, None), nn.Dropout | float | int)]


def _has_effect(inner: Any, held: list[tuple[nn.Module, str]]) -> bool:
    """Return whether two forward passes differ with this dropout alone, at one half."""
    weight = inner.get_input_embeddings().weight
    ids = torch.linspace(0.1 * len(weight), 0.8 * len(weight), 16).long()[None].to(weight.device)
    cuda = [weight.device] if weight.device.type == "cuda" else []
    layers = [part for module, name in held for part in (module, getattr(module, name)) if isinstance(part, nn.Module)]
    _assign(held, 0.5)
    with evaluating(inner), torch.no_grad(), torch.random.fork_rng(devices=cuda):
        try:
            for layer in layers:
                layer.training = True
            read = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
            first, second = (inner(**read)[0] for _ in range(2))
        finally:
            for layer in layers:
                layer.training = False
    return not torch.equal(first, second)


def probabilities(model: nn.Module) -> Iterator[tuple[nn.Module | PreTrainedConfig, str]]:
    """Return modules and configurations with the names of their probabilities of dropout and of skipping a layer."""
    of_modules = (getattr(module, "config", None) for module in model.modules())
    configs = {id(config): config for config in of_modules if isinstance(config, PreTrainedConfig)}
    holders: list[nn.Module | PreTrainedConfig] = [*model.modules(), *configs.values()]
    for holder in holders:
        names = ["p"] if isinstance(holder, nn.Dropout) else []
        for name in names + [name for name, value in vars(holder).items() if "drop" in name and type(value) is float]:
            yield holder, name
