"""How often the host waits for the device while texts are encoded, counted on a pretended device."""

import pytest

from embrew.modeling.settings.pooling import Pooling
from tests.conftest import SENTENCES
from tests.pretend_device import counted, move

PROMPT = "Read this text with care, and say in a single word what it means. " * 2
CASES = {
    "mean": {"pooling": Pooling("mean")},
    "memory": {"template": "{text}{memory}", "memory_tokens": 3, "pooling": Pooling("mean", "memory")},
    "a shared prefix": {
        "template": PROMPT + "{text}",
        "attention": "causal",
        "memory_tokens": 0,
        "pooling": Pooling("last"),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_each_further_batch_waits_once(case, make_encoder):
    """For its vectors. A call may wait more often once, where the library makes the cache of a prefix."""
    encoder = make_encoder("llama", **CASES[case])
    move(encoder)
    texts = [text * (1 + i % 3) for i, text in enumerate(SENTENCES * 2)]
    waits, batches = {}, {}
    for size in (4, 2):
        with counted() as counts:
            encoder.encode(texts, batch_size=size)
        waits[size], batches[size] = counts.total, -(-len(texts) // size)
        assert counts.counts["download"] == batches[size], counts.counts
    assert waits[2] - waits[4] == batches[2] - batches[4] > 0
