"""Language models whose frozen linear layers have 4-bit weights of bitsandbytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from embrew.model.low_rank import LowRank
from embrew.settings.quantization import BLOCK, Quantization

LIBRARY = "bitsandbytes"


def check_library() -> None:
    """Import bitsandbytes.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ValueError(
            'a 4-bit base needs bitsandbytes, which is not installed; install it with: pip install "embrew[qlora]"'
        ) from error


def loading_options(settings: Quantization, *, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what `from_pretrained` needs to quantise the linear layers of a model, all but the head.

    Args:
        settings: how.
        dtype: of the products.
        device: where the weights are quantised.

    Raises:
        ValueError: bitsandbytes is not installed.
    """
    check_library()
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=settings.type,
        bnb_4bit_use_double_quant=settings.double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def prepare_quantized(model: PreTrainedModel) -> None:
    """Make a model that was just quantised trainable after an evaluation, and its dequantised values float32.

    Raises:
        ValueError: a layer has weights that bitsandbytes cannot dequantise, or no linear layer's.
    """
    for name, layer in quantized_layers(model).items():
        if layer.source_cls is not nn.Linear or layer.in_features % BLOCK:
            raise ValueError(
                f"quantization: {type(model).__name__} has the layer {name}, which is no linear layer with an input "
                f"of a multiple of {BLOCK} dimensions; leave quantization out"
            )
        # in evaluation on such a CPU, it would change its weights to a form that has no gradient (bitsandbytes 0.50.2)
        layer.support_avx512bf16_for_cpu = False
        layer.weight.quant_state.dtype = torch.float32


def quantized_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers with 4-bit weights, by name."""
    return {name: module for name, module in model.named_modules() if is_quantized(module)}


def is_quantized(layer: nn.Module | None) -> bool:
    """Return whether a layer is a `Linear4bit` of bitsandbytes."""
    return hasattr(layer, "quant_state")


def add_beside(layer: Any, down: Tensor, up: Tensor) -> None:
    """Add `up @ down` to a 4-bit layer, beside its weights, in float32."""
    if not hasattr(layer, "merged"):
        layer.merged = LowRank(layer.in_features, layer.out_features).to(down.device)
        layer.register_forward_hook(_with_merged)
    layer.merged.add(down, up)


def _with_merged(layer: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output + layer.merged(*inputs).to(output.dtype)


def dequantize(model: Any, dtype: torch.dtype) -> None:
    """Replace 4-bit layers by linear layers, in place and one by one; what is beside their weights is added."""
    from bitsandbytes.functional import dequantize_4bit

    for name, layer in quantized_layers(model).items():
        weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        if hasattr(layer, "merged"):
            weight += layer.merged.weight()
        plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        plain.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        plain.bias = layer.bias
        model.set_submodule(name, plain.train(layer.training))
    model.hf_quantizer.remove_quantization_config(model)
