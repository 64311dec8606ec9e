"""Memory tokens by length: how many, which ones, and that all else works with different numbers in a batch."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.methods import Bottleneck, Compression
from embrew.recipe import Recipe, build
from embrew.settings.encoder import Pooling
from embrew.text.template import memory_count
from embrew.text.tokens import Segment, Tokens
from tests.conftest import SENTENCES
from tests.objectives.cases import loss_and_gradients
from tests.objectives.test_bottleneck import assert_two_calls_are_the_dense_mask

TEXTS = ["a", *SENTENCES, " ".join(SENTENCES)]


def ratio_encoder(make_encoder, **settings):
    return make_encoder(attention="causal", memory_ratio=20, pooling=Pooling("last", "memory"), **settings)


@given(st.integers(1, 300), st.sampled_from([1, 2.5, 7, 100]), st.integers(1, 40), st.integers(2, 120))
def test_the_count_of_a_text_that_is_cut(tokens, ratio, bank, room):
    """The fewest that cover what is left of the text beside them: found by trying."""
    covering = [z for z in range(1, room) if z * ratio >= min(tokens, room - z)]
    wanted = min(covering[0] if covering else bank, bank)
    assert memory_count(tokens, ratio=ratio, bank=bank, room=room) == wanted


def test_rows_take_the_last_tokens_of_the_bank(make_encoder):
    encoder = ratio_encoder(make_encoder)
    bank = encoder.backbone.memory_ids
    counts = []
    for row in encoder.template.rows(TEXTS):
        memory = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.MEMORY]
        counts.append(len(memory))
        assert memory == bank[len(bank) - len(memory) :]
        assert len(memory) == memory_count(row.segments.count(Segment.TEXT), ratio=20, bank=3)
    assert set(counts) == {1, 2, 3}


def test_a_text_that_is_cut_keeps_to_the_limit_and_equals_the_cut_text(make_encoder):
    encoder = ratio_encoder(make_encoder)
    for limit in (12, 30, 41, 60):  # where one memory token fewer would not do for the text it leaves room for
        (row,) = encoder.template.rows([TEXTS[-1]], max_length=limit)
        memory = row.segments.count(Segment.MEMORY)
        assert len(row.ids) == limit
        text = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.TEXT]
        assert encoder.template.rows([text], max_length=limit)[0] == row
        assert memory == memory_count(len(text), ratio=20, bank=3)


def test_only_the_text_counts(make_encoder):
    """BOS, the instruction, the template's words and EOS are no text; *Learn Before Represent*: R = |X| / |Z|."""
    encoder = ratio_encoder(make_encoder, template="{text} {instruction}{memory}{eos}")
    for tokens, expected in ((1, 1), (20, 1), (21, 2), (40, 2), (41, 3), (400, 3)):
        (row,) = encoder.template.rows([[5] * tokens], instruction="find the answer to this question: ")
        assert row.segments.count(Segment.TEXT) == tokens
        assert row.segments.count(Segment.MEMORY) == expected


def test_the_bottleneck_with_different_numbers_in_a_batch(make_encoder):
    """Two calls are the dense mask in float64; the bank's first row learns from long texts only."""
    encoder = ratio_encoder(make_encoder, lora={"lora_dropout": 0.0})
    objective = Bottleneck()
    objective.setup(encoder)
    batch = objective.collate([{"query": text, "positive": text[::-1][:20]} for text in TEXTS], encoder)
    assert len(set(batch["text"].where(Segment.MEMORY).sum(1).tolist())) == 3
    _, grads = assert_two_calls_are_the_dense_mask(encoder, objective, batch)
    short = objective.collate([{"query": "a", "positive": "b"}], encoder)
    _, grads = loss_and_gradients(encoder, objective, short)
    assert grads["backbone.memory"][-1].abs().max() > 0 == grads["backbone.memory"][:-1].abs().max()


def recipe_values(model, folder, **encoder):
    rows = [{"query": text[:20], "positive": text} for text in SENTENCES]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "encoder": {
            "model": str(model),
            "template": "{text}{memory}",
            "memory_tokens": 3,
            "pooling": {"mode": "last", "over": "memory"},
            "max_length": {"query": 64, "document": 64},
            **encoder,
        },
        "stages": [
            {"name": "learn", "objective": {"type": "bottleneck"}, "data": {"path": str(folder / "pairs.jsonl")}}
        ],
    }


def test_saved_and_opened_again(model_folder, tmp_path):
    values = recipe_values(model_folder("llama"), tmp_path, memory_ratio=20)
    encoder = build.encoder(Recipe.from_values(values))
    encoder.save_pretrained(tmp_path / "out", verify="fast")
    assert "one for every 20 tokens of a text, at most 3" in (tmp_path / "out" / "README.md").read_text()
    opened = Encoder.from_pretrained(tmp_path / "out")
    assert opened.settings.memory_ratio == 20
    np.testing.assert_array_equal(opened.encode(TEXTS), encoder.encode(TEXTS))
    assert opened.weights_hash() == encoder.weights_hash()
    other = Recipe.from_values(recipe_values(model_folder("llama"), tmp_path))
    with pytest.raises(ValueError, match="encoder.memory_ratio=None, there 20.0"):
        build.check_same_encoder(other, opened, tmp_path)
    assert build.encoder(other).weights_hash() != encoder.weights_hash()


def test_export_needs_one_number(model_folder, tmp_path):
    """With texts that never get a second one the stock folder has the same vectors; otherwise it is refused."""
    short = recipe_values(model_folder("llama"), tmp_path, memory_ratio=63)
    export_encoder(build.encoder(Recipe.from_values(short)), tmp_path / "stock", verify="full")
    vocabulary = json.loads((tmp_path / "stock" / "tokenizer.json").read_text())["added_tokens"]
    assert sum("memory" in token["content"] for token in vocabulary) == 1
    long = build.encoder(Recipe.from_values(recipe_values(model_folder("llama"), tmp_path, memory_ratio=20)))
    with pytest.raises(
        ValueError, match="memory_ratio=20: texts of up to 64 tokens get 1 to 3 .* --max-length 21 or less"
    ):
        export_encoder(long, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    export_encoder(long, tmp_path / "other", max_length=21, verify="full")
    assert (tmp_path / "other" / "parity.json").exists()


def test_what_needs_all_memory_tokens_says_so(make_encoder):
    encoder = ratio_encoder(make_encoder)
    with pytest.raises(ValueError, match="and a tensor of memory states needs all 3; leave encoder.memory_ratio out"):
        encoder.memory_states(Tokens.pad(encoder.template.rows(TEXTS)))
    with pytest.raises(ValueError, match="compression needs all 3"):
        Compression().setup(encoder)
    with pytest.raises(ValueError, match="pooling over some of them needs all 3"):
        make_encoder(attention="causal", memory_ratio=20, pooling=Pooling("mean", "memory", slots=(0,)))
