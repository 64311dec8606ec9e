"""An export's leading dimensions: kept by a stock module, and declared for those that serve it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from embrew.config.yaml_files import parse_yaml
from embrew.encoder import Encoder


def leading_dimensions(encoder: Encoder, *, of: str = "sentence_embedding") -> nn.Module:
    """Return a stock module that keeps the leading dimensions: a product with the first columns of the identity, exact.

    `truncate_dim` of Sentence-Transformers comes after all modules, so after `Normalize`: its vectors would be short.

    Args:
        encoder: says how many of how many.
        of: the feature that is truncated, as Sentence-Transformers calls it.
    """
    from sentence_transformers.base.modules import Dense

    width, keep = encoder.backbone.hidden_size, encoder.get_embedding_dimension()
    chosen = torch.eye(keep, width, device=encoder.device, dtype=encoder.backbone.dtype)
    dense = Dense(width, keep, bias=False, activation_function=nn.Identity(), init_weight=chosen, module_input_name=of)
    return dense.requires_grad_(False)


def nested_dimensions(encoder: Encoder) -> list[int]:
    """Return dimensions to which vectors may be truncated: those its recipe trained and this encoder keeps, or none."""
    keep = encoder.get_embedding_dimension()
    trained = _trained_dimensions(parse_yaml(encoder.recipe or "", source="the recipe of the encoder"))
    return sorted({keep} | {dim for dim in trained if dim < keep}) if trained else []


def _trained_dimensions(part: Any) -> set[int]:
    """Return what nested objectives in a part of a recipe train: `dims` of Matryoshka, `compression_size` of ESE."""
    if isinstance(part, list):
        return {dim for item in part for dim in _trained_dimensions(item)}
    if not isinstance(part, dict):
        return set()
    own = {*part.get("dims", ()), part.get("compression_size")} - {None} if "type" in part else set()
    return own | _trained_dimensions(list(part.values()))
