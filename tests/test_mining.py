"""Hard negatives: near, not too near, and never the answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from embrew.mining import mine


class Angles:
    """Texts are angles in degrees."""

    prompts: dict[str, str] = {}  # noqa: RUF012
    device = torch.device("cpu")

    def encode(self, inputs, **_):
        radians = np.deg2rad([float(text.split()[-1]) for text in inputs])
        return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)

    encode_query = encode_document = encode

    def get_embedding_dimension(self):
        return 2

    def similarity(self, a, b):
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a, b):
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1)


QUERIES, POSITIVES = ["q 0", "q 90"], ["p 20", "p 110"]
CORPUS = ["n 10", "n 19", "n 21", "n 30", "n 45", "n 80", "n 170"]


def pairs(**more):
    return Dataset.from_dict({"query": QUERIES, "positive": POSITIVES, **more})


def test_what_is_nearer_than_the_positive_less_a_margin_is_left_out():
    """cos 20° = 0.940; with a margin of 5 % the bound is 0.893 = cos 26.8°."""
    found = mine(Angles(), pairs(instruction=["find", None]), corpus=CORPUS, num_negatives=3)
    first, second = found.rows
    assert first["negatives"] == ["n 30", "n 45", "n 80"]
    assert first["scores"] == pytest.approx(np.cos(np.deg2rad([20, 30, 45, 80])).tolist(), abs=1e-6)
    assert first["instruction"] == "find" and "instruction" not in second
    assert second["query"] == "q 90" and "n 80" not in second["negatives"], "10° away, nearer than its positive"
    assert found.pairs_without == 0


def test_other_bounds():
    wider = mine(Angles(), pairs(), corpus=CORPUS, relative_margin=0.0, num_negatives=1)
    assert wider.rows[0]["negatives"] == ["n 21"]
    with pytest.raises(ValueError, match="no negative for any of 1 pairs"):
        mine(Angles(), pairs().select([0]), corpus=["n 1", "n 2"], num_negatives=1)
    with pytest.raises(ValueError, match="no pairs"):
        mine(Angles(), pairs().select([]))


def test_a_query_is_not_its_own_negative():
    """Documents are turned by 30°, so that a query's own text is farther than its positive: 0.866 < 0.893."""

    class Turned(Angles):
        def encode_document(self, inputs, **_):
            return self.encode([f"{float(text.split()[-1]) + 30}" for text in inputs])

    rows = Dataset.from_dict({"query": ["q 0"], "positive": ["p -10"]})
    corpus = ["n 15", "q 0", "Q  0", "n 5", "n 10"]
    (row,) = mine(Turned(), rows, corpus=corpus, num_negatives=2).rows
    assert row["negatives"] == ["n 5", "n 10"], "as many as were asked for"
    assert row["scores"] == pytest.approx(np.cos(np.deg2rad([20, 35, 40])).tolist(), abs=1e-6)
