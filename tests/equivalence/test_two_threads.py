"""Two threads that encode on one shared model, one causal, one bidirectional."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from embrew.encoder import Encoder
from embrew.model.backbone import Backbone
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES, by_default, tiny_model

ROUNDS = 10
TEXTS = [f"{sentence} {i}" * (1 + i % 3) for i in range(6) for sentence in SENTENCES]


@pytest.mark.parametrize(
    ("family", "attn_implementation"),
    by_default([("llama", "sdpa")], [("llama", "sdpa"), ("gemma3", "eager")]),
)
def test_two_threads_on_one_model(tokenizer, family, attn_implementation):
    assert len(TEXTS) == 30
    backbone = Backbone(tiny_model(family, attn_implementation=attn_implementation))
    encoders = [
        Encoder(backbone, tokenizer, Base("folder", "tiny"), attention=attention, pooling=Pooling("mean")).eval()
        for attention in ("causal", "bidirectional")
    ]
    alone = [encoder.encode(TEXTS, batch_size=4) for encoder in encoders]
    assert np.abs(alone[0] - alone[1]).max() > 0.01
    together = Barrier(2)

    def work(number):
        rounds = []
        for _ in range(ROUNDS):
            together.wait(timeout=60)
            rounds.append(encoders[number].encode(TEXTS, batch_size=4))
        return rounds

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, range(2)))
    for number in range(2):
        assert len(results[number]) == ROUNDS
        for vectors in results[number]:
            np.testing.assert_allclose(vectors, alone[number], rtol=0, atol=1e-6)
    assert getattr(backbone.inner.config, "is_causal", True) is True  # and nothing was left behind
