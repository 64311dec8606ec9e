"""One graph of token ids gives the vectors of `encode`: every attention, pooling and family; padded, alone, empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.runtimes.graph import LabelledGraph, SentenceGraph, graph_refusal, merged_model
from embrew.runtimes.portable import fixed_form, make_portable
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Tokens
from tests.conftest import DIFFERENT, ENCODER_FAMILIES, FAMILIES, SENTENCES, by_default

TEXTS = [*SENTENCES[:2], "", "a", "ends with </s> and <|memory_0|>", "long " * 40]
LAST = {"memory_tokens": 0, "attention": "causal"}
CASES: dict[str, dict[str, Any]] = {
    "memory": {},
    "memory-causal-attention": {"attention": "memory_causal"},
    "some-memory-tokens": {"pooling": Pooling("mean", "memory", slots=(2, 0))},
    "concatenated": {"pooling": Pooling("concat", "memory")},
    "some-concatenated": {"pooling": Pooling("concat", "memory", slots=(0, 2))},
    "mean-of-text": {"pooling": Pooling("mean", "text"), "template": "{text} is:{memory}"},
    "weighted-mean-of-text": {"pooling": Pooling("weighted_mean", "text"), "soft_prompt_tokens": 2, **LAST}
    | {"template": "{soft_prompt}{text}{eos}"},
    "last-of-text": {"pooling": Pooling("last", "text"), "template": "{text}{eos}", **LAST},
    "last": {"pooling": Pooling("last"), **LAST},
    "first": {"pooling": Pooling("cls"), **LAST, "attention": "bidirectional"},
    "weighted-mean": {"pooling": Pooling("weighted_mean"), **LAST},
    "not-normalised": {"pooling": Pooling("mean"), "normalize": False, **LAST},
    "projection": {"pooling": Pooling("weighted_mean", projection=50), **LAST},
    "concatenated-projections": {"pooling": Pooling("concat", "memory", projection=7)},
    "latent-attention": {"pooling": Pooling("mean", latents=4, heads=2), **LAST, "attention": "bidirectional"},
}


def parts(encoder: Encoder) -> tuple[Any, dict[int, int]]:
    """The merged model in float32, and the ids of learned tokens, which keep their own."""
    learned = encoder.backbone.memory_ids + encoder.backbone.soft_prompt_ids
    ids = {i: i for i in learned}
    return merged_model(encoder, ids, encoder.backbone.vocab_size + len(ids)), ids


def sentences(encoder: Encoder) -> Callable[[list[str]], Tensor]:
    graph = SentenceGraph(encoder, *parts(encoder))

    def vectors(texts: list[str]) -> Tensor:
        tokens = Tokens.pad(encoder.template.rows(texts, max_length=encoder.max_seq_length))
        with torch.no_grad():
            return graph(tokens.input_ids, tokens.attention_mask)

    return vectors


@pytest.mark.parametrize("case", CASES)
def test_every_form_is_what_encode_gives(case, make_encoder):
    encoder = make_encoder(lora={}, max_length=40, **CASES[case])
    assert graph_refusal(encoder) is None
    graph = sentences(encoder)
    wanted = torch.from_numpy(encoder.encode(TEXTS))
    close = 1e-6 * max(1.0, wanted.abs().max().item())  # vectors that are not normalised have larger numbers
    assert (graph(TEXTS) - wanted).abs().max() < close
    alone = torch.cat([graph([text]) for text in TEXTS])
    assert (alone - wanted).abs().max() < close


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("family", by_default((*DIFFERENT, "mistral"), FAMILIES))
def test_every_family_beyond_its_window(
    family, attention, make_encoder
):  # Mistral's and Gemma's windows have 8 tokens, the long text 40
    encoder = make_encoder(family, lora={}, attention=attention, max_length=40)
    assert (sentences(encoder)(TEXTS) - torch.from_numpy(encoder.encode(TEXTS))).abs().max() < 1e-6


@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_bert_type_encoders(family, encoder_folder):
    encoder = Encoder.from_pretrained(encoder_folder(family), max_length=40, dtype="float32")
    assert (sentences(encoder)(TEXTS) - torch.from_numpy(encoder.encode(TEXTS))).abs().max() < 1e-6


def test_dimensions_are_truncated_before_vectors_are_normalised(make_encoder):
    encoder = make_encoder()
    encoder.truncate_dim = 8
    vectors = sentences(encoder)(TEXTS)
    assert vectors.shape == (len(TEXTS), 8) and (vectors - torch.from_numpy(encoder.encode(TEXTS))).abs().max() < 1e-6
    assert (vectors.norm(dim=-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_row_of_padding_alone_is_zero_and_changes_no_other(attention, make_encoder):
    graph = SentenceGraph(encoder := make_encoder(attention=attention), *parts(encoder))
    tokens = Tokens.pad(encoder.template.rows(TEXTS[:2]))
    ids = torch.cat([tokens.input_ids, tokens.input_ids[:1]])
    mask = torch.cat([tokens.attention_mask, torch.zeros_like(tokens.attention_mask[:1])])
    vectors = graph(ids, mask)
    assert (vectors[2] == 0).all() and (vectors[:2] - torch.from_numpy(encoder.encode(TEXTS[:2]))).abs().max() < 1e-6


@pytest.mark.parametrize("case", ["memory", "mean-of-text", "last", "first", "weighted-mean"])
def test_padding_on_the_left_changes_nothing(case, make_encoder):
    encoder = make_encoder(lora={}, max_length=40, **CASES[case])
    graph = SentenceGraph(encoder, *parts(encoder))
    rows = encoder.template.rows([text for text in TEXTS if text], max_length=40)
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([[7] * (width - len(row.ids)) + row.ids for row in rows])
    mask = torch.tensor([[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows])
    wanted = torch.from_numpy(encoder.encode([text for text in TEXTS if text]))
    assert (graph(ids, mask) - wanted).abs().max() < 1e-6


def test_labelled_tokens_need_no_fixed_form(make_encoder):
    """Fewer memory tokens for short texts, and a text that is repeated: forms that ids alone do not show."""
    for settings in (
        {"template": "{text}{memory}", "memory_ratio": 8},
        {"template": "{text} again: {echo}", "pooling": Pooling("mean", "echo"), "memory_tokens": 0},
    ):
        encoder = make_encoder(normalize=False, **settings)
        tokens = Tokens.pad(encoder.template.rows(TEXTS))
        with torch.no_grad():
            vectors = LabelledGraph(encoder, parts(encoder)[0])(tokens.input_ids, tokens.segment_ids)
        assert (vectors - torch.from_numpy(encoder.encode(TEXTS))).abs().max() < 1e-5


def test_pooling_over_the_repeated_text_is_refused(make_encoder):
    encoder = make_encoder(memory_tokens=0, template="{text} again: {echo}", pooling=Pooling("mean", "echo"))
    assert "it pools over the repeated text" in str(graph_refusal(encoder))


def test_the_encoder_and_the_parts_of_an_export_are_not_changed(make_encoder):
    encoder = make_encoder(pooling=Pooling("mean", latents=4, heads=2), memory_tokens=0)
    encoder.backbone.model.to(torch.bfloat16)
    made = make_portable(*fixed_form(encoder))
    graph = made.graph()
    dtypes = [next(module.parameters()).dtype for module in (encoder.backbone.model, made.model, graph)]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert encoder.head is not None and encoder.head.latents.requires_grad
