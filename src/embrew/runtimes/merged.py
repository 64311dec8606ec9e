"""A plain transformers model that holds everything an encoder has trained but its head."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from embrew.encoder import Encoder


def merged_model(encoder: Encoder, ids: dict[int, int], vocabulary: int) -> Any:
    """Return a copy of the model without head, adapter merged, memory tokens in its embedding matrix.

    Of a quantised model, it has the dequantised weights, which training saw, and not those of the original.
    """
    backbone = copy.deepcopy(encoder.backbone)
    if backbone.is_quantized:
        backbone.to("cpu").dequantize()  # whole weights, for which an accelerator may have no room
    else:
        backbone.merge_adapter()
    model = backbone.inner
    rows = model.get_input_embeddings().weight.shape[0]
    if vocabulary > rows:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    if backbone.learned:
        weight = model.get_input_embeddings().weight
        learned = torch.cat(list(backbone.learned.values()))
        with torch.no_grad():
            for own, stock in ids.items():
                weight[stock] = learned[own - rows].to(weight.dtype)
    if not encoder.backbone.is_encoder:
        _declare_attention(model.config, causal=encoder.attention.is_causal is not False)
    return model


def write_rows(model: Any, rows: Mapping[int, Tensor]) -> None:
    """Write input embeddings, by their ids, into a model's embedding matrix, which has room for them."""
    embedding = model.get_input_embeddings()
    scale = getattr(embedding, "scalar_embed_scale", 1.0)  # Gemma scales its embeddings by sqrt(hidden)
    with torch.no_grad():
        for place, row in rows.items():
            embedding.weight[place] = (row.float() / scale).to(embedding.weight.dtype)


def _declare_attention(config: Any, *, causal: bool) -> None:
    """Write the direction of attention into a configuration, under both names that servers read.

    transformers and vLLM read `is_causal`; Text Embeddings Inference reads `use_bidirectional_attention`. Gemma's own
    configurations have that field already, and in Gemma 3 it changes the sliding window too, so it stays as it is.
    """
    config.is_causal = causal
    if not hasattr(type(config), "use_bidirectional_attention"):
        config.use_bidirectional_attention = not causal
