"""Packed rows on a CUDA device, by the real kernels: equal to rows alone, forward and backward, and kept apart."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertModel, LlamaConfig, MistralConfig, Qwen3Config

from embrew.modeling.model import varlen
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.text.tokens import Tokens
from tests.modeling.model.test_varlen import PATTERNS, batch, seen_by_layers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SIZES = {"vocab_size": 300, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
HEADS = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
CONFIGS = {
    "llama": LlamaConfig(**HEADS),
    "qwen3": Qwen3Config(**HEADS),
    "mistral": MistralConfig(**HEADS, sliding_window=32),
    "bert": BertConfig(**SIZES, num_attention_heads=4),
}
needs_flash = pytest.mark.skipif(find_spec("flash_attn") is None, reason="needs the package flash-attn")
KERNELS = [
    pytest.param("varlen_fa", torch.bfloat16, marks=needs_flash),
    ("varlen_flex", torch.bfloat16),
    ("varlen_flex", torch.float32),
]
LENGTHS = (300, 4, 21, 128, 1, 77)


def backbone_of(family: str, kernel: str, dtype: torch.dtype) -> Backbone:
    torch.manual_seed(0)
    config = CONFIGS[family]
    model = BertModel(config) if family == "bert" else AutoModelForCausalLM.from_config(config)
    backbone = Backbone(model.to("cuda", dtype).eval())
    backbone.inner.config._attn_implementation = kernel
    return backbone.requires_grad_(True)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS)
def test_states_and_gradients(kernel: str, dtype: torch.dtype, family: str, name: str) -> None:
    if family == "bert" and name != "bidirectional":
        pytest.skip("BERT reads in both directions")
    if kernel == "varlen_fa" and (name == "hidden" or (family == "mistral" and PATTERNS[name].is_causal is None)):
        pytest.skip("flash-attention cannot express it")
    rows, pattern = batch(name, *LENGTHS), PATTERNS[name]
    tokens = Tokens.pad(rows).to("cuda")
    backbone = backbone_of(family, kernel, dtype)
    backbone.hidden_states(tokens, pattern)  # the kernel is verified
    states, shapes = seen_by_layers(backbone, lambda: backbone.hidden_states(tokens, pattern))
    total = sum(len(row.ids) for row in rows)
    assert shapes == {(1, total if kernel == "varlen_fa" else math.ceil(total / 128) * 128, 256)}
    exact = backbone_of(family, "eager", torch.float64)
    close = 2e-5 if dtype == torch.float32 else 5e-2
    of = torch.linspace(-1, 1, 256, device="cuda")
    value, reference = torch.zeros((), device="cuda"), torch.zeros((), device="cuda", dtype=torch.float64)
    for ours, row in zip(states, rows, strict=True):
        wanted = exact.hidden_states(Tokens.pad([row]).to("cuda"), pattern)[0]
        ours = ours[: len(row.ids)]
        assert (ours.double() - wanted).abs().max() <= close * wanted.abs().max()
        value, reference = value + (ours.float() * of).sum(), reference + (wanted * of).sum()
    weights = [
        [p for at, p in each.inner.named_parameters() if "att" in at and p.ndim == 2] for each in (backbone, exact)
    ]
    found, wanted = (torch.autograd.grad(loss, p) for loss, p in zip((value, reference), weights, strict=True))
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.double() - theirs).norm() <= 2 * close * theirs.norm()


@pytest.mark.parametrize("name", ["causal", "bidirectional", "bottleneck"])
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS)
def test_no_text_moves_another(kernel: str, dtype: torch.dtype, name: str) -> None:
    rows, pattern = batch(name, *LENGTHS), PATTERNS[name]
    tokens, backbone = Tokens.pad(rows).to("cuda"), backbone_of("llama", kernel, dtype)
    with torch.no_grad():
        before = backbone.hidden_states(tokens, pattern)
        for changed in range(len(rows)):
            ids = tokens.input_ids.clone()
            ids[changed] = (ids[changed] + 1) % 300
            after = backbone.hidden_states(Tokens(ids, tokens.segment_ids), pattern)
            assert [torch.equal(after[i], before[i]) for i in range(len(rows))] == [
                i != changed for i in range(len(rows))
            ]


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS)
def test_gradients_are_the_same_every_time(kernel: str, dtype: torch.dtype) -> None:
    tokens, backbone = Tokens.pad(batch("causal", *LENGTHS)).to("cuda"), backbone_of("llama", kernel, dtype)

    def gradients() -> list[torch.Tensor]:
        states = backbone.hidden_states(tokens, PATTERNS["causal"])
        weights = [p for name, p in backbone.inner.named_parameters() if "_proj" in name]
        return list(torch.autograd.grad(states.float().square().sum(), weights))

    assert all(torch.equal(one, other) for one, other in zip(gradients(), gradients(), strict=True))


def test_rows_are_packed_by_default() -> None:
    backbone = backbone_of("llama", "sdpa", torch.bfloat16)
    backbone.use_varlen()
    assert backbone.inner.config._attn_implementation == "varlen"
    with torch.no_grad():
        assert backbone.packs(PATTERNS["causal"]) and backbone.packs(PATTERNS["bidirectional"])
    assert varlen.kernels_of(backbone.inner)[-1] == "flex"
