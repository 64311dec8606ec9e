"""AnglE's composite loss: its terms one by one, in plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from embrew.losses import angle, cosent
from embrew.methods import Angle
from embrew.methods.embedding import text_keys


def given(rows: int = 4, width: int = 6, *, negatives: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if negatives:
        return {
            "query": torch.randn(rows, width, generator=generator, dtype=torch.float64),
            "document": torch.randn(rows + negatives, width, generator=generator, dtype=torch.float64),
        }
    return {"text": torch.randn(2 * rows, width, generator=generator, dtype=torch.float64)}


def test_graded_pairs_in_a_plain_loop():
    """Texts 0..3 are the left sides, 4..7 the right; pair 1 is graded 0, so texts 1 and 5 count as nothing."""
    embeddings, grades = given(), torch.tensor([1.0, 0.0, 0.5, 0.5])
    batch = {"grades": grades, "graded": [0, 2, 3, 4, 6, 7], "text_keys": text_keys([f"t{i}" for i in range(8)])}
    parts = Angle(in_batch_weight=2.0, temperature=0.1, angle_temperature=0.2).loss(embeddings, batch)
    x = embeddings["text"]
    total = 0.0
    for i in (0, 2, 3, 4, 6, 7):
        scores = {j: float(cosine_similarity(x[i], x[j], dim=0)) / 0.1 for j in range(8) if j != i}
        partner = (i + 4) % 8
        total += -scores[partner] + math.log(sum(math.exp(score) for score in scores.values()))
    assert float(parts["in_batch"]) == pytest.approx(total / 8, rel=1e-9)
    left, right = x.chunk(2)
    assert float(parts["cosine"]) == pytest.approx(float(cosent(left, right, grades, temperature=0.1)), rel=1e-12)
    assert float(parts["angle"]) == pytest.approx(float(angle(left, right, grades, temperature=0.2)), rel=1e-12)
    expected = parts["cosine"] + parts["angle"] + 2.0 * parts["in_batch"]
    assert float(parts["loss"]) == pytest.approx(float(expected), rel=1e-12)


def test_a_text_that_comes_twice_is_no_negative():
    embeddings, grades = given(2), torch.ones(2)
    keys = text_keys(["same", "other", "one", "same"])
    batch = {"grades": grades, "graded": [0, 1, 2, 3], "text_keys": keys}
    found = Angle(cosine_weight=0, angle_weight=0).loss(embeddings, batch)
    x = embeddings["text"]
    cos = lambda i, j: float(cosine_similarity(x[i], x[j], dim=0)) / 0.05  # noqa: E731
    total = 0.0
    for i, others in {0: [2], 1: [2, 3], 2: [0, 1], 3: [1]}.items():  # "same" has two partners, texts 1 and 2
        total += -cos(i, (i + 2) % 4) + math.log(sum(math.exp(cos(i, j)) for j in others))
    assert float(found["loss"]) == pytest.approx(total / 4, rel=1e-9)


def test_pairs_with_hard_negatives():
    """Query 0 has two negatives, query 1 none, query 2 one: documents 3 and 4 are of query 0, 5 of query 2."""
    embeddings = given(3, negatives=3)
    batch = {
        "query_keys": text_keys(["a", "b", "c"]),
        "document_keys": text_keys([f"d{i}" for i in range(6)]),
        "query_indices": torch.tensor([0, 1, 2, 0, 0, 2]),
    }
    parts = Angle(rows="pairs", in_batch_weight=10.0, hard_negative_weight=3.0).loss(embeddings, batch)
    q, d = embeddings["query"], embeddings["document"]
    scores = cosine_similarity(q[:, None], d[None], dim=-1) / 0.05
    plain, hard = (
        sum(-float(scores[i, i]) + float(scores[i, :columns].logsumexp(0)) for i in range(3)) / 3 for columns in (3, 6)
    )
    assert float(parts["in_batch"]) == pytest.approx(plain / 2, rel=1e-9)
    assert float(parts["hard_negatives"]) == pytest.approx(hard / 2, rel=1e-9)
    ranked = float(parts["cosine"] + parts["angle"])
    assert float(parts["loss"]) == pytest.approx((10.0 * plain + 3.0 * hard) / 2 + ranked, rel=1e-9)
    left, grades = q[[0, 1, 2, 0, 0, 2]], torch.tensor([1, 1, 1, 0, 0, 0])
    assert float(parts["cosine"]) == pytest.approx(float(cosent(left, d, grades)), rel=1e-9)
    assert float(parts["angle"]) == pytest.approx(float(angle(left, d, grades)), rel=1e-9)
