"""`encode` as Sentence-Transformers has it, and the batching under it."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.encoder import Encoder
from embrew.model.batching import plan_batches
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Segment
from tests.characters import CHARACTERS
from tests.conftest import SENTENCES

ODD = ["", "   ", "a", "🦆🌧️👩🏽‍🚀", "مرحبا بالعالم", "x " * 500, *SENTENCES]


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 4, "batch_tokens": 0}])
def test_plan_refuses_nothing_at_a_time(options):
    with pytest.raises(ValueError, match="1 or more"):
        plan_batches([3], **options)


def test_order_and_companions_do_not_matter(make_encoder):
    """Any texts in any order and any batches: the vectors of each text alone; another order alone moves no bit."""
    encoder = make_encoder(max_length=64, lora={})
    half = copy.deepcopy(encoder)
    half.backbone.to(torch.bfloat16)

    @given(
        texts=st.lists(st.text(CHARACTERS, max_size=200) | st.sampled_from(ODD), min_size=1, max_size=12, unique=True),
        options=st.one_of(
            st.fixed_dictionaries({"batch_size": st.integers(1, 12)}),
            st.fixed_dictionaries({"batch_tokens": st.integers(1, 1000)}),
        ),
        seed=st.integers(0, 9),
    )
    @settings(max_examples=12, deadline=None)
    def check(texts: list[str], options: dict[str, int], seed: int) -> None:
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        shuffled = [texts[i] for i in order]
        for one, tolerance in ((encoder, 2e-6), (half, 8e-3)):  # of 32 dimensions, not of hundreds
            alone = np.stack([one.encode(text) for text in texts])
            assert np.abs(one.encode(shuffled, **options) - alone[order]).max() <= tolerance
        np.testing.assert_array_equal(
            encoder.encode(shuffled, batch_size=len(texts)), encoder.encode(texts, batch_size=len(texts))[order]
        )

    check()
    vectors = encoder.encode(ODD)
    assert vectors.dtype == np.float32 and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_shapes_and_kinds(make_encoder):
    encoder = make_encoder()
    assert encoder.encode("one").shape == (32,) and encoder.encode([]).shape == (0, 32)
    assert encoder.encode([20, 21, 22]).shape == (32,), "a list of ids is one text"
    assert isinstance(encoder.encode(["a", "b"], convert_to_tensor=True), torch.Tensor)
    assert isinstance(encoder.encode(["a", "b"], convert_to_numpy=False), list)
    assert encoder.encode(["a"], precision="ubinary").shape == (1, 4)
    assert encoder.get_embedding_dimension() == 32


def test_truncated_then_normalised(make_encoder):
    encoder = make_encoder(normalize=False)
    full = encoder.encode(SENTENCES)
    cut = encoder.encode(SENTENCES, truncate_dim=8, normalize_embeddings=True)
    by_hand = full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True)
    assert np.allclose(cut, by_hand, atol=1e-6)
    assert not np.allclose(np.linalg.norm(full, axis=1), 1)


def test_prompts_and_sides(make_encoder):
    encoder = make_encoder(prompts={"query": "find: "}, max_length={"query": 12, "document": 40})
    query = encoder.encode_query(SENTENCES)
    assert np.array_equal(query, encoder.encode(SENTENCES, prompt_name="query", max_length=12))
    assert np.array_equal(query, encoder.encode(SENTENCES, prompt="find: ", max_length=12))
    document = encoder.encode_document(SENTENCES)
    assert np.array_equal(document, encoder.encode(SENTENCES)) and not np.allclose(query, document)
    assert np.array_equal(encoder.encode_query(SENTENCES, prompt=""), encoder.encode(SENTENCES, max_length=12))
    assert encoder.max_seq_length == 40
    with pytest.raises(ValueError, match="this encoder has document, query"):
        encoder.encode(SENTENCES, prompt_name="passage")


def test_similarity_is_cosine(make_encoder):
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[4.0, 3.0], [0.0, 2.0]])
    encoder = make_encoder()
    assert torch.allclose(encoder.similarity(a, b), torch.tensor([[0.96, 0.8], [0.8, 0.0]]))
    assert torch.allclose(encoder.similarity_pairwise(a, b), torch.tensor([0.96, 0.0]))


def test_an_empty_text_pooled_over_text_is_the_zero_vector(make_encoder):
    encoder = make_encoder(memory_tokens=0, pooling=Pooling("mean", "text"))
    vectors = encoder.encode(["", "a word"])
    assert not vectors[0].any() and vectors[1].any()


def test_not_text_and_not_offered(make_encoder):
    encoder = make_encoder()
    with pytest.raises(ValueError, match="text 1 holds a lone surrogate"):
        encoder.encode(["a", "\ud800"])
    with pytest.raises(ValueError, match="only sentence_embedding"):
        encoder.encode("a", output_value="token_embeddings")
    with pytest.raises(ValueError, match="one process per device"):
        encoder.encode("a", chunk_size=8)  # type: ignore[arg-type]


def test_broken_weights_never_give_vectors(make_encoder):
    encoder = make_encoder()
    with torch.no_grad():
        encoder.backbone.causal_lm.get_input_embeddings().weight[25] = float("nan")
    with pytest.raises(ValueError, match="text 1 has a NaN or infinite embedding"):
        encoder.encode([[20, 21], [25, 22], [23]])


# ---- prompts instead of training ----------------------------------------------------------------------------------


def test_several_templates_are_the_mean_of_their_embeddings(make_encoder):
    """Un-normalised before the mean, as MetaEOL's code has it; whatever the batches."""
    patterns = ['This "{text}" means:"', 'A topic of "{text}" is:"', "{text}"]
    settings = {"memory_tokens": 0, "attention": "causal", "pooling": "last", "preparation": "sentence"}
    encoder = make_encoder(template=patterns, **settings)
    parts = [make_encoder(template=pattern, normalize=False, **settings).encode(SENTENCES) for pattern in patterns]
    mean = np.mean(parts, axis=0)
    for options in ({}, {"batch_size": 2}, {"batch_tokens": 100}):
        vectors = encoder.encode(SENTENCES, **options)
        assert np.abs(vectors - mean / np.linalg.norm(mean, axis=1, keepdims=True)).max() < 2e-6
    raw = encoder.with_settings(normalize=False)
    assert np.abs(raw.encode(SENTENCES) - mean).max() < 1e-5 * np.abs(mean).max()


def test_the_second_copy_has_seen_the_whole_text(make_encoder):
    """The last word moves every pooled state of the repetition, and none of the first copy."""
    encoder = make_encoder(
        template="{text} again: {echo}", memory_tokens=0, attention="causal", pooling=Pooling("mean", "echo")
    )
    one, other = (encoder.tokenize([f"{SENTENCES[0][:20]} {word}"]) for word in ("a", "b"))
    states = [encoder.hidden_states(tokens) for tokens in (one, other)]
    moved = (states[0] - states[1]).abs().amax(-1)[0]
    first, second = one.where(Segment.TEXT)[0], one.where(Segment.ECHO)[0]
    assert (moved[first][:-1] == 0).all() and (moved[second] > 1e-5).all()
    expected = states[0][0][second].mean(0)
    expected = expected / expected.norm()
    assert np.abs(encoder.encode([f"{SENTENCES[0][:20]} a"])[0] - expected.detach().numpy()).max() < 1e-6


def test_a_memory_token_that_starts_as_the_prompt_s_last_token_is_that_prompt():
    """Template, memory token and its start are those of PromptEOL in one piece: the same vectors."""
    words = '"{text}" means in one word'
    plain = Encoder.from_pretrained(
        "nano", max_length=64, template=f'{words}:"', words_after="separate", pooling="last"
    )
    ids = plain.tokenizer(f'{words.partition("}")[2]}:"', add_special_tokens=False)["input_ids"]
    last = plain.tokenizer.decode(ids[-1:])
    template = f'"{{text}}{plain.tokenizer.decode(ids[:-1])}{{memory}}'
    how: Any = {"template": template, "max_length": 64, "words_after": "separate", "pooling": Pooling("last", "memory")}
    with_memory = Encoder.from_pretrained(
        "nano", memory_tokens=1, memory_init={"words": last}, attention="causal", **how
    )
    texts = ["", "a cat", "</s> is no token here", "a long text " * 90]
    np.testing.assert_allclose(with_memory.encode(texts), plain.encode(texts), atol=1e-5)
    drawn = Encoder.from_pretrained("nano", memory_tokens=1, attention="causal", **how)
    assert np.abs(drawn.encode(texts) - plain.encode(texts)).max() > 1e-2


def test_words_that_are_another_number_of_tokens_are_refused():
    for tokens in ({"memory_tokens": 3}, {"soft_prompt_tokens": 3}):
        with pytest.raises(ValueError, match=r"the words of memory_init make 2 tokens, but there are 3 memory tokens"):
            Encoder.from_pretrained("nano", memory_init={"words": "a cat"}, **tokens)
    for wrong in ({"word": "a"}, {"words": 3}, {"words": "a", "more": "b"}, {}):
        with pytest.raises(ValueError, match="give vocab, noise, mean"):
            Encoder.from_pretrained("nano", memory_init=wrong, memory_tokens=1)  # type: ignore[arg-type]
