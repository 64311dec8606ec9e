"""Similarity of memory tokens against a loop, clusters by hand and against scipy, pooling over chosen slots."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.analysis.memory import MemoryTokens, clusters, effective_tokens, memory_similarity, pool_over
from embrew.encoder import Encoder
from tests.conftest import SENTENCES

# 0, 1 and 2 in a row: neighbours alike, ends not. 3 and 4 alike, and like nothing else.
CHAIN = np.array(
    [
        [1.00, 0.95, 0.85, 0.10, 0.20],
        [0.95, 1.00, 0.92, 0.10, 0.20],
        [0.85, 0.92, 1.00, 0.10, 0.20],
        [0.10, 0.10, 0.10, 1.00, 0.91],
        [0.20, 0.20, 0.20, 0.91, 1.00],
    ]
)


def test_clusters_by_hand():
    # 0.95 joins 0 and 1; then 2 stays out, since 0 and 2 are at 0.85; 0.91 joins 3 and 4.
    assert clusters(CHAIN, threshold=0.9) == [[0, 1], [2], [3, 4]]
    assert clusters(CHAIN, threshold=0.93) == [[0, 1], [2], [3], [4]]
    assert clusters(CHAIN, threshold=0.95) == [[0], [1], [2], [3], [4]]  # above, not at
    assert clusters(CHAIN, threshold=0.8) == [[0, 1, 2], [3, 4]]
    assert clusters(CHAIN, threshold=-1) == [[0, 1, 2, 3, 4]]
    assert clusters(np.ones((1, 1))) == [[0]]


def cosines(seed, k, noise=0.5):
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=(3, 6))[chance.integers(0, 3, size=k)] + noise * chance.normal(size=(k, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(7)))
def test_order_of_tokens_does_not_matter(seed, order):
    similarity = cosines(seed, 7)
    moved = clusters(similarity[np.ix_(order, order)])
    assert sorted(sorted(order[i] for i in group) for group in moved) == clusters(similarity)


def test_effective_tokens_are_one_of_each_cluster():
    picked = {seed: effective_tokens(CHAIN, threshold=0.8, seed=seed) for seed in range(20)}
    assert all(first in (0, 1, 2) and second in (3, 4) for first, second in picked.values())
    assert len({tuple(tokens) for tokens in picked.values()}) > 1
    assert effective_tokens(CHAIN, threshold=0.8, seed=3) == picked[3]


def test_summary():
    summary = MemoryTokens(CHAIN).summary()
    assert (summary["k"], summary["k_eff"], summary["threshold"]) == (5, 3, 0.9)
    assert summary["clusters"] == [[0, 1], [2], [3, 4]]
    assert summary["effective_tokens"] == effective_tokens(CHAIN)
    assert (summary["lowest_cosine"], summary["highest_cosine"]) == (0.1, 0.95)
    assert summary["mean_cosine"] == pytest.approx((0.95 + 0.85 + 0.92 + 0.91 + 3 * 0.1 + 3 * 0.2) / 10)
    assert MemoryTokens(np.ones((1, 1))).summary()["mean_cosine"] is None  # no two tokens to compare


def test_similarity_is_the_mean_over_texts_of_cosines(make_encoder):
    encoder = make_encoder(memory_tokens=4, prompts={"document": "doc: "}, max_length={"query": 64, "document": 20})
    for side, instruction, limit in (("text", "", 64), ("document", "doc: ", 20)):
        wanted = np.zeros((4, 4))
        with torch.no_grad():
            for text in SENTENCES:
                states = encoder.memory_states(encoder.tokenize([text], instruction=instruction, max_length=limit))[
                    0
                ].double()
                for i in range(4):
                    for j in range(4):
                        wanted[i, j] += torch.cosine_similarity(states[i], states[j], dim=0).item() / len(SENTENCES)
        for options in ({}, {"batch_tokens": 90}):
            similarity = memory_similarity(encoder, SENTENCES, side=side, **options)
            np.testing.assert_allclose(similarity, wanted, atol=1e-6)


def test_pooling_over_effective_tokens(make_encoder):
    encoder = make_encoder(memory_tokens=4, normalize=False, prompts={"query": "q: "})
    fewer = pool_over(encoder, [1, 3])
    with torch.no_grad():
        states = encoder.memory_states(encoder.tokenize(SENTENCES))
    np.testing.assert_allclose(fewer.encode(SENTENCES), states[:, [1, 3]].mean(1), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(SENTENCES), states.mean(1), atol=1e-6)  # untouched
    np.testing.assert_array_equal(pool_over(encoder).encode(SENTENCES), encoder.encode(SENTENCES))
    np.testing.assert_allclose(pool_over(encoder, range(4)).encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)
    query = fewer.encode_query(SENTENCES)
    np.testing.assert_array_equal(query, fewer.encode(SENTENCES, prompt="q: "))
    assert not np.allclose(query, fewer.encode_document(SENTENCES))
    assert fewer.backbone is encoder.backbone
    assert fewer.weights_hash() != encoder.weights_hash()  # results of one are never taken for the other's
    assert fewer.describe()["pooling"] == {"mode": "mean", "over": "memory", "slots": [1, 3]}


def test_it_survives_saving(model_folder, tmp_path):
    encoder = Encoder.from_pretrained(
        model_folder("llama"), memory_tokens=3, template="{text}{memory}", pooling=pooling((0, 2))
    )
    encoder.save_pretrained(tmp_path / "saved")
    again = Encoder.from_pretrained(tmp_path / "saved")
    assert again.pooling == encoder.pooling
    assert again.weights_hash() == encoder.weights_hash()
    np.testing.assert_allclose(again.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)


def pooling(slots):
    from embrew.settings.encoder import Pooling

    return Pooling("mean", "memory", slots=slots)


def test_what_cannot_be(make_encoder):
    plain = make_encoder(memory_tokens=0, pooling="mean")
    for call in (lambda: memory_similarity(plain, SENTENCES), lambda: pool_over(plain, [0])):
        with pytest.raises(ValueError, match="has no memory tokens; train one with memory_tokens"):
            call()
    encoder = make_encoder()
    with pytest.raises(ValueError, match=r"slots=\(0, 3\); choose one or more from 0 to 2"):
        pool_over(encoder, [0, 3])
    with pytest.raises(ValueError, match="choose one or more from 0 to 2"):
        pool_over(encoder, [])
    with pytest.raises(ValueError, match="choose one or more from 0 to 2"):
        make_encoder(pooling=pooling((5,)))
    with pytest.raises(ValueError, match="no texts"):
        memory_similarity(encoder, [])
