"""Truncate an encoder to its first layers and leading dimensions."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

from embrew.model.encoder_module import EncoderModule
from embrew.model.layers import layers_of, path_of_layers, with_module
from embrew.storage.card import without_scores
from embrew.text.texts import check_integer

E = TypeVar("E", bound=EncoderModule)


def cut(encoder: E, *, num_layers: int | None = None, truncate_dim: int | None = None) -> E:
    """Return the same encoder, on the same weights, with fewer layers and dimensions; it can be exported.

    Its vectors equal `encode(..., num_layers=, truncate_dim=)` of the full encoder: states after the last kept layer,
    final norm included, are pooled, truncated to the leading dimensions, then normalised.

    Args:
        encoder: the full encoder; it is not changed.
        num_layers: layers to keep, the first ones; None: all.
        truncate_dim: dimensions to keep, the leading ones; None: as the encoder does.

    Raises:
        TypeError, ValueError: not a whole number, more than there are, or less than one; fewer layers of an encoder
            with `pooling.center`.

    Examples:
        >>> small = cut(encoder, num_layers=6, truncate_dim=128)  # doctest: +SKIP
    """
    backbone = encoder.backbone
    check_integer("num_layers", num_layers, maximum=backbone.num_layers)
    encoder.check_depth(num_layers)
    check_integer("truncate_dim", truncate_dim, maximum=encoder.get_embedding_dimension())
    smaller = copy.copy(encoder)
    if truncate_dim is not None:
        smaller.truncate_dim = truncate_dim
    fewer_layers = num_layers is not None and num_layers < backbone.num_layers
    narrower = truncate_dim is not None and truncate_dim < encoder.get_embedding_dimension()
    if encoder.card_facts is not None and (fewer_layers or narrower):
        smaller.card_facts = without_scores(encoder.card_facts)  # those are of the full encoder
    if num_layers is None or num_layers == backbone.num_layers:
        return smaller
    smaller.num_layers = num_layers
    smaller._modules = dict(encoder._modules)
    smaller.backbone = copy.copy(backbone)
    smaller.backbone._modules = dict(backbone._modules)
    smaller.backbone._switch = None  # it lists the layers of the full encoder
    inner = backbone.inner
    path_of_inner = next(name for name, module in backbone.model.named_modules() if module is inner)
    path = ".".join(filter(None, (path_of_inner, path_of_layers(inner))))
    layers = dict.fromkeys(layers_of(inner)[:num_layers])  # ALBERT has one, which runs several times
    smaller.backbone.model = with_module(backbone.model, path, nn.ModuleList(layers))
    config = _cut_config(inner.config, backbone.num_layers, num_layers)
    smaller.backbone.inner.config = smaller.backbone.causal_lm.config = config
    return smaller


def _cut_config(config: Any, before: int, after: int) -> Any:
    """Return a configuration of `after` layers; lists with an entry per layer (`layer_types`) are shortened."""
    shorter = copy.deepcopy(config)
    for name, value in vars(config).items():
        about_layers = any(word in name for word in ("layer", "block", "_types"))
        if about_layers and isinstance(value, list) and len(value) == before:
            setattr(shorter, name, value[:after])
    shorter.num_hidden_layers = after
    if getattr(config, "num_hidden_groups", None) == before:  # an ALBERT that shares no layers
        shorter.num_hidden_groups = after
    return shorter
