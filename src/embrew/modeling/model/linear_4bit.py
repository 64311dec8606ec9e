"""A linear layer with a 4-bit weight, on the kernels of bitsandbytes, which must be installed."""

from __future__ import annotations

import bitsandbytes
import torch
from bitsandbytes.functional import QuantState
from torch import Tensor, nn

from embrew.modeling.model.four_bit import Blocks, codes, codes_of_scales
from embrew.modeling.model.low_rank import LowRank
from embrew.modeling.settings.quantization import BLOCK, GROUP


class Linear4bit(bitsandbytes.nn.Linear4bit):  # type: ignore[misc, unused-ignore]
    """A linear layer with a frozen 4-bit weight, and the adapters that were merged into it, which keep their float32.

    Products are in the dtype of autocast, or in the input's, as of any linear layer. (bitsandbytes' own `forward` keeps
    the dtype of the first input. On a CPU with AVX512-BF16 it packs the weight anew in evaluation, computes in bfloat16
    from then on, and gives no gradient when training goes on.)

    Attributes:
        settings: how the weight was quantised.
        merged: the sum of adapters that were merged.
    """

    def __init__(self, layer: nn.Linear, blocks: Blocks) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.settings = blocks.settings
        self.bias = layer.bias
        self.merged = LowRank(layer.in_features, layer.out_features).to(blocks.packed.device)
        self.weight = _parameter(blocks)

    @property
    def blocks(self) -> Blocks:
        """The weight, without adapters."""
        state = self.weight.quant_state
        inner = None if state.state2 is None else state.state2.absmax
        return Blocks(self.weight.data, state.absmax, inner, state.offset, state.shape, self.settings)

    def as_linear(self, dtype: torch.dtype) -> nn.Linear:
        """Return a linear layer of the same outputs: weight and merged adapters added in float32, then rounded."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        weight = self.blocks.dequantized()
        weight += self.merged.weight()
        layer.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        layer.bias = self.bias
        return layer.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out)` of `(…, in)`."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        output: Tensor = bitsandbytes.matmul_4bit(x.to(dtype), self.weight, quant_state=self.weight.quant_state)
        if self.bias is not None:  # here, since bitsandbytes' gradient of a bias has another shape than the bias
            output = output + self.bias.to(dtype)
        return output if self.merged.rank == 0 else output + self.merged(x).to(dtype)


def _parameter(blocks: Blocks) -> bitsandbytes.nn.Params4bit:
    """Return the weight as bitsandbytes holds it; its state is float32, whatever the products are in."""
    kind, device = blocks.settings.type, blocks.packed.device
    inner = None
    if blocks.scales_of_scales is not None:
        of_scales = codes_of_scales().to(device)
        inner = QuantState(blocks.scales_of_scales, code=of_scales, blocksize=GROUP, dtype=torch.float32)
    state = QuantState(
        blocks.scales,
        shape=blocks.shape,
        code=codes(kind).to(device),
        blocksize=BLOCK,
        quant_type=kind,
        dtype=torch.float32,
        offset=blocks.offset,
        state2=inner,
    )
    return bitsandbytes.nn.Params4bit(
        blocks.packed,
        quant_state=state,
        blocksize=BLOCK,
        compress_statistics=inner is not None,
        quant_type=kind,
        bnb_quantized=True,
    )
