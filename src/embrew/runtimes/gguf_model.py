"""A model in a GGUF file: the architectures that llama.cpp and this package both know, their key values and tensors.

Key and tensor names are those of llama.cpp's `conversion/` (commit 0c1e570); tensor names come from gguf's own map.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from embrew.runtimes.stock_folder import sliding_window

if TYPE_CHECKING:
    from gguf import GGUFWriter

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Name in llama.cpp by `model_type` of transformers."""
INTERLEAVED = ("llama",)  # llama.cpp rotates neighbouring pairs of dimensions there, transformers the two halves
ROPE = ("default", "llama3")


def refusal(config: PreTrainedConfig, limit: int) -> str | None:
    """Return why llama.cpp cannot run a model on texts of up to `limit` tokens as transformers does; None: it can."""
    kind, rope = config.model_type, getattr(config, "rope_parameters", None) or {}
    if kind not in ARCHITECTURES:
        return f"its architecture is {kind}; those that can be written are {', '.join(ARCHITECTURES)}"
    scaling = rope.get("rope_type", "default")
    if scaling not in ROPE or (scaling == "llama3" and ARCHITECTURES[kind] != "llama"):
        return f"its rotary positions are scaled by {scaling!r}; {' and '.join(ROPE)} (Llama only) can be written"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "only a part of each attention head's dimensions is rotated"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, and llama.cpp has silu there"
    window = sliding_window(config)
    if window is not None and window < limit:
        return (
            f"its attention has a sliding window of {window} tokens, which llama.cpp ignores there, and its texts have "
            f"up to {limit}; export with --max-length {window} or less"
        )
    if kind == "qwen3" and config.attention_bias:
        return "its attention has biases, which llama.cpp's Qwen3 has not"
    if kind == "qwen2" and head_width(config) * config.num_attention_heads != config.hidden_size:
        return "its attention heads together are not as wide as its states, which llama.cpp's Qwen2 needs"
    return None


def head_width(config: PreTrainedConfig) -> int:
    """Return the dimensions of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def write_architecture(writer: GGUFWriter, config: PreTrainedConfig, *, limit: int) -> None:
    """Write the key values of a model's architecture; `limit` is the context length."""
    writer.add_context_length(limit)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_width(config))
    writer.add_value_length(head_width(config))
    writer.add_rope_dimension_count(head_width(config))
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and float32 values of a GGUF file's tensors, from a transformers model without its head."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    arch = ARCHITECTURES[config.model_type]
    names = get_tensor_name_map(MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, value in model.state_dict().items():
        tensor_name = names.get_name(f"model.{name}", try_suffixes=(".weight", ".bias"))
        if tensor_name is None:
            raise ValueError(f"gguf has no name for the tensor {name} of a {config.model_type} model")
        if arch in INTERLEAVED and ".q_proj." in name:
            value = interleaved(value, config.num_attention_heads)
        elif arch in INTERLEAVED and ".k_proj." in name:
            value = interleaved(value, config.num_key_value_heads)
        yield tensor_name, value.detach().float().cpu().contiguous().numpy()
    if config.rope_parameters.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config)


def interleaved(value: Tensor, heads: int) -> Tensor:
    """Return rows of a projection in the order of llama.cpp's rotation.

    Rows i and i + width/2 of a head, which transformers rotates together, become neighbours.
    """
    halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return halves.transpose(1, 2).reshape(value.shape)


def _llama3_factors(config: PreTrainedConfig) -> np.ndarray:
    """Return what Llama 3.1 divides its rotary frequencies by, `(head width / 2)`."""
    rope, width = config.rope_parameters, head_width(config)
    frequencies = 1.0 / float(rope["rope_theta"]) ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    wavelengths = 2 * math.pi / frequencies
    ratio = rope["original_max_position_embeddings"] / wavelengths
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = ((ratio - low) / (high - low)).clamp(0, 1)  # 0: divide by the factor, 1: leave as it is
    return (1 / ((1 - smooth) / factor + smooth)).numpy()


def encoded(name: str, value: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Return a tensor's bytes and their type; vectors and norms are F32, rows that Q8_0 cannot divide are F16.

    Raises:
        ValueError: a value does not fit the type.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if value.ndim == 1 or kind == "F32":
        return value.astype(np.float32), "F32"
    if kind == "Q8_0" and value.shape[-1] % 32:
        kind = "F16"
    if kind == "F16" and np.abs(value).max() > np.finfo(np.float16).max:
        raise ValueError(f"{name} has values of up to {np.abs(value).max():.3g}, too large for fp16; use bf16 or fp32")
    return quantize(value, GGMLQuantizationType[kind]), kind
