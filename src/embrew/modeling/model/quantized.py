"""Quantise the frozen weights of a language model, and dequantise them."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from embrew.modeling.model.four_bit import Blocks, quantized
from embrew.modeling.settings.quantization import BLOCK, Quantization

if TYPE_CHECKING:
    from embrew.modeling.model.linear_4bit import Linear4bit

logger = logging.getLogger(__name__)
LIBRARY = "bitsandbytes"


def quantizable_layers(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """Return the linear layers of a model that quantisation is for, by name; the model may be on the meta device.

    Their weights take `Quantization.bits_per_weight` each. Not among them are the head, the embeddings, and layers
    whose input is no multiple of 64 wide: blocks would then cross rows, which bitsandbytes' CPU kernel (0.50.2)
    dequantises to other numbers.
    """
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not head and module.in_features % BLOCK == 0
    }


def quantize(model: PreTrainedModel, settings: Quantization, *, dequantized: torch.dtype | None = None) -> str:
    """Quantise the linear layers of a model in place, and return the sha256 of their blocks.

    Args:
        model: on the CPU, with weights of any dtype; what is not quantised keeps it.
        settings: how.
        dequantized: keep the quantised values as weights of this dtype, without bitsandbytes.

    Raises:
        ValueError: bitsandbytes is not installed; or the model has no linear layers that can be quantised.
    """
    kind: Any = linear_4bit() if dequantized is None else None
    layers = quantizable_layers(model)
    if not layers:
        raise ValueError(
            f"quantization={settings.type}: {type(model).__name__} has no linear layer with an input of a multiple of "
            f"{BLOCK} dimensions; leave quantization out"
        )
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, layer in layers.items():
            blocks = quantized(layer.weight, settings)
            _update(digest, name, blocks)
            if dequantized is None:
                _put(model, name, kind(layer, blocks))
            else:
                layer.weight = nn.Parameter(blocks.dequantized(dequantized), requires_grad=False)
    count = sum(layer.in_features * layer.out_features for layer in layers.values())
    others = sum(p.numel() for p in model.parameters() if p.is_floating_point()) - (0 if dequantized is None else count)
    logger.info(
        "quantised to %s: %d linear layers, %s weights at %.3f bits; %s others keep their dtype",
        settings.type, len(layers), f"{count:,}", settings.bits_per_weight, f"{others:,}",
    )  # fmt: skip
    return digest.hexdigest()


def quantized_layers(model: nn.Module) -> dict[str, Linear4bit]:
    """Return the layers with 4-bit weights, by name."""
    return {name: module for name, module in model.named_modules() if is_quantized(module)}


def is_quantized(layer: nn.Module | None) -> bool:
    """Return whether a layer is one with a 4-bit weight of embrew's."""
    return hasattr(layer, "blocks") and hasattr(layer, "as_linear")


def dequantize(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace layers with 4-bit weights by linear layers of the same outputs, in place and one by one."""
    for name, layer in quantized_layers(model).items():
        _put(model, name, layer.as_linear(dtype))


def linear_4bit() -> type[Linear4bit]:
    """Return the layer class.

    Raises:
        ValueError: bitsandbytes is not installed; names the extra.
    """
    try:
        from embrew.modeling.model.linear_4bit import Linear4bit
    except ImportError as error:
        raise ValueError(
            'a 4-bit base needs bitsandbytes, which is not installed; install it with: pip install "embrew[qlora]". '
            "Encoder.from_pretrained(FOLDER, dequantize=True) opens a saved encoder without it, on the dequantised "
            "weights"
        ) from error
    return Linear4bit


def _update(digest: Any, name: str, blocks: Blocks) -> None:
    digest.update(name.encode())
    for tensor in blocks.tensors():
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)
