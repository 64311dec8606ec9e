"""Blocks of 4-bit weights: by hand, element by element, and against bitsandbytes where it is installed."""

import numpy as np
import pytest
import torch

from embrew.modeling.model.four_bit import codes, codes_of_scales, quantized
from embrew.modeling.settings.quantization import Quantization

# QLoRA (arXiv 2305.14314), appendix E.
PAPER = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 0.02


def test_one_block_by_hand():
    row = torch.zeros(64)
    row[:4] = torch.tensor([2.0, -1.0, 0.7, 0.1])
    made = quantized(row, Quantization(double_quant=False))
    assert made.scales.tolist() == [2.0]
    # 2/2 = 1 is index 15; -1/2 lies nearest -0.525 (2); 0.35 nearest 0.338 (11); 0.05 nearest 0.0796 (8); 0 is 7
    assert made.packed[:, 0].tolist() == [15 << 4 | 2, 11 << 4 | 8, *[7 << 4 | 7] * 30]
    expected = [2.0, 2 * PAPER[2], 2 * PAPER[11], 2 * PAPER[8]] + [0.0] * 60
    torch.testing.assert_close(made.dequantized(), torch.tensor(expected))
    assert not quantized(torch.zeros(2, 64), Quantization()).dequantized().any()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_every_weight_becomes_the_nearest_number(kind):
    values, code = weight(48, 128), codes(kind).numpy()
    found = quantized(values, Quantization(type=kind, double_quant=False)).dequantized().numpy().reshape(-1)
    for at, value in enumerate(values.reshape(-1).numpy()):
        scale = np.abs(values.reshape(-1, 64)[at // 64].numpy()).max()
        assert abs(found[at] - value) <= np.abs(code * scale - value).min() + 1e-7
    assert kind != "nf4" or np.array_equal(code, np.array(PAPER, dtype=np.float32))


def test_double_quantisation_by_hand():
    """300 blocks, so a second and shorter group of scales."""
    made = quantized(weight(300, 64), Quantization())
    largest = np.abs(weight(300, 64).numpy()).max(axis=1)
    mean, table = largest.mean(dtype=np.float64), codes_of_scales().numpy()
    assert float(made.offset) == pytest.approx(mean, rel=1e-6)
    for first, last in ((0, 256), (256, 300)):
        group = largest[first:last] - np.float32(mean)
        widest = np.abs(group).max()
        assert float(made.scales_of_scales[first // 256]) == pytest.approx(widest, rel=1e-5)
        for at in range(first, last):
            chosen = table[int(made.scales[at])] * widest
            assert abs(chosen - group[at - first]) <= np.abs(table * widest - group[at - first]).min() + 1e-8
    bits = 8 * sum(tensor.numel() * tensor.element_size() for tensor in made.tensors())
    assert bits == 4 * 300 * 64 + 8 * 300 + 32 * 2 + 32


def test_blocks_depend_on_values_alone():
    values = weight(256, 256).bfloat16()
    first = quantized(values, Quantization())
    for other in (values.float(), values.t().contiguous().t()):
        for ours, theirs in zip(first.tensors(), quantized(other, Quantization()).tensors(), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_blocks_are_those_of_bitsandbytes(kind):
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    values = weight(256, 192)
    assert torch.equal(codes_of_scales(), functional.create_dynamic_map())
    packed, state = functional.quantize_4bit(values, quant_type=kind)
    ours = quantized(values, Quantization(type=kind, double_quant=False))
    assert torch.equal(ours.packed, packed)
    assert torch.equal(ours.scales, state.absmax)
    assert torch.equal(ours.dequantized(), functional.dequantize_4bit(packed, state))
    packed, state = functional.quantize_4bit(values, quant_type=kind, compress_statistics=True)
    ours = quantized(values, Quantization(type=kind))
    same = ours.scales == state.absmax  # numbers of the table that are equally near may differ
    assert same.float().mean() > 0.99
    difference = ours.dequantized().view(-1, 64)[same] - functional.dequantize_4bit(packed, state).view(-1, 64)[same]
    assert difference.abs().max() < 1e-8


def test_bits_per_weight():
    assert Quantization().bits_per_weight == 4 + 8 / 64 + 32 / 64 / 256
    assert Quantization(double_quant=False).bits_per_weight == 4.5
