"""Weights in 4 bits: blocks of 64 with a scale each, as bitsandbytes lays them out.

*QLoRA: Efficient Finetuning of Quantized LLMs* (Dettmers et al., 2023), section 3: w ≈ c2 · code[i], with i a number
of 4 bits and c2 the scale of the block. With double quantisation, c2 ≈ c1 · code8[j] + offset, with j a number of 8
bits and c1 the scale of a group of 256.

The arithmetic is the same on every machine and needs no library, so that an encoder's base can be quantised again to
the bit. `bitsandbytes` multiplies with these blocks: see `modeling.model.linear_4bit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from embrew.modeling.settings.quantization import BLOCK, GROUP, Quantization

AT_ONCE = 1 << 20  # weights, whose temporary values fit into a cache
TINY = 1e-38  # the least scale that is divided by: a block of zeros has none
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, scaled to 1: the authors' table (`get_4bit_type`, bitsandbytes/functional.py)."""
FP4 = tuple(sign * value / 12 for sign in (1.0, -1.0) for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0))
"""Numbers of one sign bit, two of the exponent and one of the mantissa, scaled to 1, by their bits."""


@dataclass(frozen=True)
class Blocks:
    """A quantised weight.

    Attributes:
        packed: two weights per byte, the first in the upper four bits: `(weights / 2, 1)` uint8.
        scales: of each block, `(blocks,)` float32; with double quantisation, their 8-bit indices, uint8.
        scales_of_scales: of each group, `(groups,)` float32; None without double quantisation.
        offset: mean of the blocks' scales, float32; None without double quantisation.
        shape: of the weight.
        settings: how it was quantised.
    """

    packed: Tensor
    scales: Tensor
    scales_of_scales: Tensor | None
    offset: Tensor | None
    shape: torch.Size
    settings: Quantization

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weight, computed in float32, then rounded to `dtype`."""
        values = torch.empty(2 * self.packed.numel(), dtype=dtype, device=self.packed.device)
        code = codes(self.settings.type).to(values.device)
        packed, scales, step = self.packed.reshape(-1), self.scales_in_float32(), AT_ONCE // 2
        for start in range(0, len(packed), step):
            part = packed[start : start + step]
            index = torch.stack([part >> 4, part & 15], dim=1).reshape(-1, BLOCK).int()
            first = 2 * start // BLOCK
            found = code[index] * scales[first : first + len(index), None]
            values[2 * start : 2 * start + found.numel()] = found.reshape(-1)
        return values.view(self.shape)

    def scales_in_float32(self) -> Tensor:
        """Return the scale of each block."""
        if self.scales_of_scales is None or self.offset is None:
            return self.scales
        of_groups = self.scales_of_scales.repeat_interleave(GROUP)[: len(self.scales)]
        return codes_of_scales().to(self.scales.device)[self.scales.int()] * of_groups + self.offset

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that decide the weight's values."""
        yield from (part for part in (self.packed, self.scales, self.scales_of_scales, self.offset) if part is not None)


def quantized(weight: Tensor, settings: Quantization) -> Blocks:
    """Quantise a weight of a multiple of 64 elements, in float32 whatever its dtype."""
    flat = weight.detach().reshape(-1, BLOCK)
    code = codes(settings.type).to(flat.device)
    ascending, order = torch.sort(code, stable=True)
    bounds = ((ascending[:-1] + ascending[1:]) / 2).tolist()
    packed = torch.empty(flat.numel() // 2, 1, dtype=torch.uint8, device=flat.device)
    scales = torch.empty(len(flat), dtype=torch.float32, device=flat.device)
    for start in range(0, len(flat), AT_ONCE // BLOCK):
        part = flat[start : start + AT_ONCE // BLOCK].float()
        largest = part.abs().amax(dim=1)
        values = part * (1.0 / largest.clamp(min=TINY))[:, None]
        index = torch.zeros_like(values, dtype=torch.uint8)
        for bound in bounds:
            index += values > bound
        if settings.type != "nf4":  # whose numbers ascend
            index = order.to(torch.uint8)[index.int()]
        pairs = index.view(-1, 2)
        first = start * BLOCK // 2
        packed[first : first + len(pairs), 0] = (pairs[:, 0] << 4) | pairs[:, 1]
        scales[start : start + len(part)] = largest
    if not settings.double_quant:
        return Blocks(packed, scales, None, None, weight.shape, settings)
    offset = scales.double().mean().float()  # in float32, the sum would depend on the number of threads
    return Blocks(packed, *_in_8_bits(scales - offset), offset, weight.shape, settings)


def _in_8_bits(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8-bit index of each value, and the largest absolute value of each group of 256."""
    groups = -(-len(values) // GROUP)
    padded = torch.nn.functional.pad(values, (0, groups * GROUP - len(values))).view(groups, GROUP)
    largest = padded.abs().amax(dim=1)
    code = codes_of_scales().to(values.device)
    bounds = (code[:-1] + code[1:]) / 2
    index = torch.bucketize(padded * (1.0 / largest.clamp(min=TINY))[:, None], bounds)
    return index.view(-1)[: len(values)].to(torch.uint8), largest


@cache
def codes(kind: str) -> Tensor:
    """Return the 16 numbers of `nf4` or `fp4`, by index."""
    return torch.tensor(NF4 if kind == "nf4" else FP4)


@cache
def codes_of_scales() -> Tensor:
    """Return the 256 numbers of the scales of scales, ascending.

    Numbers of seven magnitudes, in powers of ten; the larger the magnitude, the more numbers (*8-Bit Approximations for
    Parallelism in Deep Learning*, Dettmers, 2016; `create_dynamic_map` in bitsandbytes/functional.py).
    """
    found = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        middles = (10.0 ** (exponent - 6)) * ((edges[:-1] + edges[1:]) / 2.0)
        found += [*middles.tolist(), *(-middles).tolist()]
    return torch.tensor(sorted(found))
