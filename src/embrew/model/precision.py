"""The dtype of weights: float32 for trained ones, whatever the model was opened in."""

from __future__ import annotations

import torch
from torch import nn

from embrew.model.low_rank import LowRank


def train_in_float32(model: nn.Module) -> list[str]:
    """Make every trained weight of fewer than 32 bits float32, and return their names.

    Neighbouring bfloat16 numbers are 1/256 to 1/128 apart, relative to their size. A step of the optimiser is mostly
    smaller than half of that, and adding it to a bfloat16 weight then changes nothing. The arithmetic of a step may
    be in bfloat16 all the same (autocast); what is frozen keeps its dtype.
    """
    rounded = {name: p for name, p in model.named_parameters() if p.requires_grad and _is_short(p)}
    for parameter in rounded.values():
        parameter.data = parameter.data.float()
    return list(rounded)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Give a model's weights a dtype, as if it had been opened in it.

    Buffers that are computed and not saved, such as the frequencies of rotary positions, keep theirs: rounded to
    bfloat16, they move far positions. (`nn.Module.to` rounds them too.) So do adapters merged into 4-bit layers.
    """
    for module in model.modules():
        if isinstance(module, LowRank):
            continue
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module._buffers.items():
            saved = name not in module._non_persistent_buffers_set
            if buffer is not None and saved and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)


def check_float32(model: nn.Module) -> None:
    """Raise where a trained weight has fewer than 32 bits.

    Raises:
        ValueError: names such weights.
    """
    short = [name for name, p in model.named_parameters() if p.requires_grad and _is_short(p)]
    if short:
        more = f", and {len(short) - 3} more" if len(short) > 3 else ""
        raise ValueError(
            f"{', '.join(short[:3])}{more}: trained weights of fewer than 32 bits lose most steps to rounding; call "
            "embrew.model.precision.train_in_float32(encoder) first (training.bf16: true computes in bfloat16)"
        )


def _is_short(parameter: nn.Parameter) -> bool:
    return parameter.dtype in (torch.bfloat16, torch.float16)
