import math
import warnings

import pytest
import torch
from torch.nn.functional import cosine_similarity

from embrew.losses import closer_than_positive, conditional_alignment_loss, info_nce, same_text_mask, score_kl
from embrew.losses.espresso import compression_loss


def vectors(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain_loop(queries, candidates, labels, temperature, mask=None):
    """Row by row, column by column, in Python floats."""
    total = 0.0
    for b, query in enumerate(queries):
        kept = [j for j in range(len(candidates)) if mask is None or not mask[b, j]]
        scores = {j: float(cosine_similarity(query, candidates[j], dim=0)) / temperature for j in kept}
        total += math.log(sum(math.exp(s) for s in scores.values())) - scores[int(labels[b])]
    return total / len(queries)


def test_info_nce_by_hand():
    queries = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    candidates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, -1.0]])
    # cosines: query 0: 1, 0.6, 0; query 1: 0, 0.8, -1. With temperature 0.5 they double.
    first = math.log(math.exp(2.0) + math.exp(1.2) + math.exp(0.0)) - 2.0
    second = math.log(math.exp(0.0) + math.exp(1.6) + math.exp(-2.0)) - 1.6
    loss = info_nce(queries, candidates, torch.tensor([0, 1]), temperature=0.5)
    assert loss.item() == pytest.approx((first + second) / 2, rel=1e-6)


@pytest.mark.parametrize("negatives", [0, 1, 3])
def test_value_and_gradient_of_sentence_transformers(negatives):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from sentence_transformers.losses import MultipleNegativesRankingLoss

    theirs = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    columns = [vectors(6, 16, seed=i).requires_grad_() for i in range(2 + negatives)]
    copies = [column.detach().clone().requires_grad_() for column in columns]
    expected = theirs.compute_loss_from_embeddings(columns, torch.empty(0))
    loss = info_nce(copies[0], torch.cat(copies[1:]), torch.arange(6), temperature=1 / 20)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    expected.backward()
    loss.backward()
    for column, ours in zip(columns, copies, strict=True):
        torch.testing.assert_close(ours.grad, column.grad, rtol=1e-4, atol=1e-7)


def test_a_masked_column_is_a_removed_column():
    queries, candidates, labels = vectors(3, 8), vectors(6, 8, seed=1), torch.arange(3)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[0, 4] = mask[1, 0] = mask[1, 5] = True
    one = queries.clone().requires_grad_()
    whole = info_nce(one, candidates, labels, mask=mask)
    whole.backward()
    other = queries.clone().requires_grad_()
    rows = []
    for b in range(3):
        kept = [j for j in range(6) if not mask[b, j]]
        rows.append(info_nce(other[b : b + 1], candidates[kept], torch.tensor([kept.index(b)])))
    torch.stack(rows).mean().backward()
    assert whole.item() == pytest.approx(sum(row.item() for row in rows) / 3, rel=1e-6)
    torch.testing.assert_close(one.grad, other.grad)
    assert whole.item() == pytest.approx(plain_loop(queries, candidates, labels, 0.05, mask), rel=1e-5)


def test_a_mask_over_a_positive_is_refused():
    mask = torch.eye(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask covers a query's own positive"):
        info_nce(torch.eye(2), torch.eye(2), torch.arange(2), mask=mask)


def test_bfloat16_is_computed_in_float32():
    queries, candidates = vectors(4, 64).bfloat16(), vectors(8, 64, seed=1).bfloat16()
    expected = info_nce(queries.float(), candidates.float(), torch.arange(4))
    loss = info_nce(queries, candidates, torch.arange(4))
    assert loss.dtype == torch.float32
    assert loss.item() == expected.item()
    with torch.autocast("cpu", torch.bfloat16):
        assert info_nce(queries.float(), candidates.float(), torch.arange(4)).item() == expected.item()


def test_identical_texts_and_zero_vectors_give_finite_numbers():
    same = torch.ones(4, 8, requires_grad=True)
    loss = info_nce(same, torch.ones(4, 8), torch.arange(4))
    assert loss.item() == pytest.approx(math.log(4), rel=1e-6)
    zero = torch.zeros(2, 8, requires_grad=True)
    (loss + info_nce(zero, torch.eye(8)[:2], torch.arange(2))).backward()
    assert torch.isfinite(same.grad).all()
    assert torch.isfinite(zero.grad).all()


def test_same_text_mask():
    # texts: queries a, b, c; columns A, B, A, a, D, with positives 0 (A), 1 (B), 2 (A again)
    queries = torch.tensor([1, 2, 3])
    columns = torch.tensor([10, 20, 10, 1, 40])
    mask = same_text_mask(queries, columns, torch.tensor([0, 1, 2]))
    assert mask.tolist() == [
        [False, False, True, True, False],  # column 2 has its positive's text, column 3 its own
        [False, False, False, False, False],
        [True, False, False, False, False],
    ]


def test_a_positive_that_is_the_query_itself_stays():
    keys = torch.tensor([5, 5, 6])
    assert same_text_mask(keys, keys, torch.arange(3)).tolist() == [
        [False, True, False],
        [True, False, False],
        [False, False, False],
    ]


def test_columns_closer_than_the_positive():
    """Cosines with the query: 0.6 for the positive, 0.8 and 0.5 for two others."""
    query = torch.tensor([[1.0, 0.0]])
    candidates = torch.tensor([[0.6, 0.8], [0.8, 0.6], [0.5, 0.75**0.5]])
    for margin, expected in ((0.0, [False, True, False]), (0.15, [False, True, True]), (-0.3, [False] * 3)):
        found = closer_than_positive(query, candidates, torch.tensor([0]), margin=margin)
        assert found.tolist() == [expected], margin


def test_no_queries_give_zero_that_keeps_the_graph():
    """A process may have no rows while the others have some: its part of a joint backward pass is zero, not NaN."""
    queries, candidates = vectors(0, 4).requires_grad_(), vectors(5, 4).requires_grad_()
    mask = torch.zeros(0, 5, dtype=torch.bool)
    for given in (None, mask):
        loss = info_nce(queries, candidates, torch.zeros(0, dtype=torch.long), mask=given)
        assert loss.item() == 0
        for_queries, for_candidates = torch.autograd.grad(loss, (queries, candidates))
        assert for_queries.shape == (0, 4) and torch.equal(for_candidates, torch.zeros(5, 4))
    own = vectors(0, 3, 4).requires_grad_()
    assert score_kl(queries, own, torch.zeros(0, 3)).item() == 0
    assert conditional_alignment_loss(queries[:, 0], queries[:, 0], torch.zeros(0, dtype=torch.long)).item() == 0
    assert torch.equal(compression_loss(own[None, 0:0, 0], own[None, 0:0, 0]), torch.zeros(1))
