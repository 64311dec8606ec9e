"""Rows of a batch one after another, without padding, against the same rows apart and padded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from embrew.model.attention import Attention
from embrew.model.cpu.attention import Packed
from embrew.model.forward import can_pack, forward, pack, read_layers, write_soft
from embrew.model.kernels import use_own_sdpa
from embrew.text.tokens import Row, Segment, Tokens
from tests.families import FAMILIES, config_of

LENGTHS = (9, 1, 30, 2, 17, 9)
SINGLE = ("lfm2", "bloom", "gemma4_text")  # with convolutions, a bias by distance, a second embedding by id
EVERY = [pytest.param(n, marks=[] if f.default else pytest.mark.slow) for n, f in FAMILIES.items()]


def batch(lengths: tuple[int, ...] = LENGTHS) -> Tokens:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, 300, (n,), generator=generator).tolist() for n in lengths]
    return Tokens.pad([Row.labelled(ids, Segment.TEXT) for ids in rows])


def model(family: str) -> PreTrainedModel:
    torch.manual_seed(1)
    inner = AutoModel.from_config(config_of(family)).eval()
    with torch.no_grad():
        for parameter in inner.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    use_own_sdpa(inner)
    return inner


def embedded(inner: PreTrainedModel, tokens: Tokens) -> Tensor:
    return inner.get_input_embeddings()(tokens.input_ids).detach().requires_grad_()


@pytest.mark.parametrize("mode", ["causal", "bidirectional"])
@pytest.mark.parametrize("family", EVERY)
def test_states_and_gradients_are_those_of_each_row_alone(family, mode):
    inner, tokens, attention = model(family), batch(), Attention(mode)
    if mode == "bidirectional" and FAMILIES[family].bidirectional is None:
        pytest.skip("the family is causal")
    packed = pack(inner, tokens, attention)
    if packed is None:
        pytest.skip(f"{family} is not packed")
    inputs = embedded(inner, tokens)
    states = forward(inner, inputs, tokens, attention, packed=packed)
    wanted = torch.randn(states.shape, generator=torch.Generator().manual_seed(2))
    (states * wanted * tokens.attention_mask[..., None]).sum().backward()
    for i, length in enumerate(LENGTHS):
        alone = inputs[i : i + 1, :length].detach().requires_grad_()
        expected = forward(inner, alone, batch((length,)), attention)
        (expected * wanted[i : i + 1, :length]).sum().backward()
        assert inputs.grad is not None and alone.grad is not None
        torch.testing.assert_close(states[i : i + 1, :length], expected, atol=2e-4, rtol=2e-3)
        torch.testing.assert_close(inputs.grad[i : i + 1, :length], alone.grad, atol=1e-3, rtol=1e-2)
        assert not inputs.grad[i, length:].any()


def test_families_whose_rows_must_stay_apart_are_not_packed():
    for family in {*SINGLE} & {*FAMILIES}:
        assert not can_pack(model(family), Attention()), family
    assert can_pack(model("llama"), Attention())


def test_rows_beyond_a_window_stay_apart():
    inner = model("mistral")
    window = inner.config.sliding_window
    assert pack(inner, batch((window, 2)), Attention()) is not None
    assert pack(inner, batch((window + 1, 2)), Attention()) is None


def test_nothing_is_packed_where_texts_are_encoded_or_a_mask_is_needed():
    inner = model("llama")
    assert pack(inner, batch(), Attention()) is not None
    assert pack(inner, batch((5,)), Attention()) is None
    assert pack(inner, batch(), Attention(bottleneck="visible")) is None
    with torch.inference_mode():
        assert pack(inner, batch(), Attention()) is None


@pytest.mark.slow
def test_dropout_on_attention_is_drawn_as_without_packing():
    inner, tokens = model("llama"), batch()
    for module in inner.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    packed, inputs = pack(inner, tokens, Attention()), embedded(inner, tokens)
    inner.train()
    torch.manual_seed(3)
    means = []
    with torch.no_grad():
        for how in (packed, None):
            drawn = torch.stack([forward(inner, inputs, tokens, Attention(), 1, packed=how) for _ in range(200)])
            drawn = drawn[:, tokens.attention_mask.bool()]
            assert drawn.std(0).max() > 1e-2
            means.append(drawn.mean(0))
    assert (means[0] - means[1]).abs().mean() < 0.04 * means[1].abs().mean()


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_texts_are_read_in_training_as_they_are_encoded(make_encoder, attention):
    encoder = make_encoder("llama", attention=attention)
    use_own_sdpa(encoder.backbone.inner)
    texts = ["", "a", "<|im_start|> of no text <|endoftext|>", "beyond the limit " * 100, "two words"]
    tokens = Tokens.pad(encoder.template.rows(texts, max_length=24))
    assert pack(encoder.backbone.inner, tokens, encoder.attention) is not None
    with torch.inference_mode():
        encoded = encoder(tokens)
    torch.testing.assert_close(encoder(tokens), encoded, atol=1e-5, rtol=1e-4)


def test_given_vectors_are_read_and_get_gradients():
    inner, vectors = model("llama"), torch.randn(4, 2, 32, generator=torch.Generator().manual_seed(4))
    rows = [
        Row.labelled([0, 0], Segment.SOFT) + Row.labelled(range(5, 5 + length), Segment.TEXT)
        for length in (1, 9, 4, 20)
    ]
    tokens, found = Tokens.pad(rows), []
    for packed in (pack(inner, tokens, Attention()), None):
        soft = vectors.clone().requires_grad_()
        inputs = write_soft(inner.get_input_embeddings()(tokens.input_ids), tokens.with_soft(soft))
        states = forward(inner, inputs, tokens, Attention(), packed=packed)
        (states * tokens.attention_mask[..., None]).square().sum().backward()
        assert soft.grad is not None
        found.append(soft.grad)
    torch.testing.assert_close(found[0], found[1], atol=1e-3, rtol=1e-3)


def test_layers_are_read_as_without_packing():
    inner, tokens, attention = model("llama"), batch(), Attention()
    weight = tokens.attention_mask[..., None]
    packed = read_layers(inner, embedded(inner, tokens), tokens, attention, lambda states: (states * weight).sum(1))
    with torch.inference_mode():
        plain = read_layers(inner, embedded(inner, tokens), tokens, attention, lambda states: (states * weight).sum(1))
    for one, other in zip(packed, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_batch_by_hand():
    tokens = batch((2, 3))
    packed = Packed.from_tokens(tokens, is_causal=True)
    assert packed.positions[0, :5].tolist() == [0, 1, 0, 1, 2]
    assert packed.packed_from_batch[:5].tolist() == [0, 1, 3, 4, 5]
    last = packed.positions.shape[1] - 1
    assert packed.batch_from_packed.tolist() == [0, 1, last, 2, 3, 4]
    states = torch.arange(12.0).view(2, 3, 2)
    again = packed.unpack(packed.pack(states), tokens)
    assert torch.equal(again[tokens.attention_mask.bool()], states[tokens.attention_mask.bool()])
