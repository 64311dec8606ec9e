"""What the alignment step does, counted: each text is encoded once, and logits are a block at a time.

The setting: V = 32,000, d = 32, 2 layers of 2 heads, 5 memory tokens, 6 triplets of 6 to 60 tokens.
"""

import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import alignment
import ctkd

from tests.benchmarks.test_counts import CHUNK, VOCABULARY, VocabularyWide

TEXTS = alignment.random_triplets(VOCABULARY, 6)
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


@pytest.fixture(scope="module")
def sides():
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    return [build(ctkd.random_model(config)) for build in (alignment.build_ours, alignment.build_peer)]


@pytest.mark.slow
def test_both_sides_compute_the_same(sides):
    found = alignment.require_same_step(*sides, TEXTS)
    assert max(found.values()) < 1e-5


def test_every_text_is_encoded_once(sides, monkeypatch):
    ours, _ = sides
    encoder, rows = ours.module.encoder, []
    original = encoder.memory
    monkeypatch.setattr(encoder, "memory", lambda tokens: (rows.append(len(tokens)), original(tokens))[1])
    ours.step(ours.batch(TEXTS))
    assert sum(rows) == 6 + 6  # queries and positives; a plain step encodes 6 + 6 + 6


def test_logits_are_a_block_at_a_time(sides):
    ours, peer = sides
    heads = [p for p in ours.module.parameters() if len(p) == VOCABULARY]
    with VocabularyWide(heads) as ours_seen:
        ours.step(ours.batch(TEXTS))
    with VocabularyWide([p for p in peer.module.parameters() if len(p) == VOCABULARY]) as peer_seen:
        peer.step(peer.batch(TEXTS))
    longest = max(map(len, [*TEXTS.positives, *TEXTS.negatives]))
    assert ours_seen.largest <= CHUNK * VOCABULARY
    assert peer_seen.largest == 6 * (5 + longest) * VOCABULARY
    scored = 2 * sum(map(len, TEXTS.positives)) + sum(map(len, TEXTS.negatives))
    assert ours_seen.rows == scored  # every scored token once, and no other


def test_the_sides_share_no_weights(sides):
    ours, peer = (dict(side.module.named_parameters()) for side in sides)
    copies = [sum(p.shape == (VOCABULARY, 32) for p in side.values()) for side in (ours, peer)]
    assert copies == [2, 4]  # embeddings and head, once and twice
    assert torch.equal(*(next(p for p in side.values() if p.shape == (VOCABULARY, 32)) for side in (ours, peer)))
