"""Losses on embeddings: contrastive, and rankings of pairs with grades, where higher grades should be more similar."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from embrew.float32 import full_float32


def info_nce(
    queries: Tensor, candidates: Tensor, labels: Tensor, *, temperature: float = 0.05, mask: Tensor | None = None
) -> Tensor:
    """InfoNCE over cosine similarities, one direction, in float32.

    loss = mean_b −log( exp(cos(q_b, c_{y_b})/τ) / Σ_j exp(cos(q_b, c_j)/τ) )

    Args:
        queries: `(batch, hidden)`, not normalised.
        candidates: `(columns, hidden)`: positives of the global batch, then hard negatives, if any.
        labels: `(batch,)` int64: each query's own positive among the columns.
        temperature: τ; its inverse is called scale elsewhere.
        mask: `(batch, columns)` bool: columns to leave out of a query's softmax; never its own positive.

    Returns:
        A scalar; 0, with gradients of 0, without queries (another process has them all).

    Raises:
        ValueError: τ is not positive, or a mask covers a positive (looked up on a CPU only: a GPU would be waited for).

    Examples:
        >>> q = torch.eye(2)
        >>> round(float(info_nce(q, q, torch.arange(2), temperature=1.0)), 4)  # log(1 + exp(-1))
        0.3133
    """
    with full_float32(queries.device.type):
        scores = _cosines(queries, candidates) / _check_temperature(temperature)
        if mask is not None:
            if mask.device.type == "cpu" and bool(mask.gather(1, labels[:, None]).any()):
                raise ValueError("mask covers a query's own positive")
            scores = scores.masked_fill(mask, float("-inf"))
        return cross_entropy(scores, labels) if len(scores) else scores.sum()


def same_text_mask(
    query_keys: Tensor, candidate_keys: Tensor, labels: Tensor, *, labelled: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Return columns that would be false negatives: the same text as the query, or as one of its positives.

    Args:
        query_keys: `(batch,)` int64, equal where texts are equal.
        candidate_keys: `(columns,)` int64, likewise.
        labels: `(batch,)` each query's own positive, which is not masked.
        labelled: keys of labelled pairs, as in `labelled_mask`; None: a query has no other positive than its own.

    Returns:
        `(batch, columns)` bool for `info_nce`.
    """
    same = (candidate_keys == candidate_keys[labels][:, None]) | (candidate_keys == query_keys[:, None])
    if labelled is not None:
        same |= labelled_mask(query_keys, candidate_keys, labelled)
    is_positive = torch.arange(len(candidate_keys), device=labels.device) == labels[:, None]
    return same & ~is_positive


def labelled_mask(query_keys: Tensor, candidate_keys: Tensor, labelled: tuple[Tensor, Tensor]) -> Tensor:
    """Return whether each column's text is labelled as a positive of each query, `(batch, columns)` bool.

    Args:
        query_keys: `(batch,)` int64, equal where texts are equal.
        candidate_keys: `(columns,)` int64, likewise.
        labelled: keys of the queries and of the positives of all labelled pairs, `(pairs,)` each.

    Examples:
        >>> queries, positives = torch.tensor([1, 1, 2]), torch.tensor([5, 6, 7])
        >>> labelled_mask(queries, positives, (queries, positives)).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    rows, columns = query_keys.sort().values, candidate_keys.sort().values
    table = torch.zeros(len(rows) + 1, len(columns) + 1, dtype=torch.bool, device=rows.device)
    table[_first(labelled[0], rows), _first(labelled[1], columns)] = True
    return table[_first(query_keys, rows)][:, _first(candidate_keys, columns)]


def _first(keys: Tensor, ordered: Tensor) -> Tensor:
    """Return the first index of each key in sorted keys, and their number for a key that is not among them."""
    index = torch.searchsorted(ordered, keys)
    return torch.where(torch.cat([ordered, ordered.new_zeros(1)])[index] == keys, index, len(ordered))


def spread_out(vectors: Tensor, keys: Tensor) -> Tensor:
    """M₁² + M₂, M₁ and M₂ the means of cosine and cosine² over pairs of different texts, in float32.

    The global orthogonal regularisation of *Learning Spread-out Local Feature Descriptors* (arXiv 1708.06320), without
    the threshold 1/d below which its M₂ has no gradient: for uniform unit vectors M₁ is 0 and M₂ is 1/d.

    Args:
        vectors: `(texts, hidden)`, not normalised.
        keys: `(texts,)` int64, equal where texts are equal.

    Returns:
        A scalar; 0, with gradients of 0, where there are no two different texts.

    Examples:
        >>> keys = torch.arange(2)
        >>> float(spread_out(torch.eye(2), keys)), round(float(spread_out(torch.ones(2, 2), keys)), 4)
        (0.0, 2.0)
    """
    with full_float32(vectors.device.type):
        unit = normalize(full_precision(vectors), dim=-1)
        different = (keys[:, None] != keys).float()
        cosines, pairs = (unit @ unit.T) * different, different.sum().clamp(min=1.0)
        return (cosines.sum() / pairs).square() + cosines.square().sum() / pairs


def closer_than_positive(queries: Tensor, candidates: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    """Return columns that are more similar to the query than its positive minus a margin, by the model's own scores.

    Such a column is probably another correct answer. The scores have no gradient; GISTEmbed (arXiv 2402.16829), Eq. 4,
    takes them from a second model.

    Args:
        queries: `(batch, hidden)`, as for `info_nce`.
        candidates: `(columns, hidden)`.
        labels: `(batch,)` each query's own positive.
        margin: columns above the positive's cosine minus `margin` are masked.

    Returns:
        `(batch, columns)` bool for `info_nce`; never a query's own positive.
    """
    with torch.no_grad(), full_float32(queries.device.type):
        cosines = _cosines(queries, candidates)
        return (cosines > cosines.gather(1, labels[:, None]) - margin).scatter(1, labels[:, None], False)


def score_kl(queries: Tensor, documents: Tensor, teacher: Tensor, *, temperature: float = 0.05) -> Tensor:
    """mean_b KL( softmax(teacher_b) ‖ softmax(cos(q_b, d_b·)/τ) ) over each query's own documents, in float32.

    Args:
        queries: `(batch, hidden)`.
        documents: `(batch, documents, hidden)`.
        teacher: `(batch, documents)` scores on any scale, padded with −inf.
        temperature: τ of the student's cosines.
    """
    with full_float32(queries.device.type):
        q, d = normalize(full_precision(queries), dim=-1), normalize(full_precision(documents), dim=-1)
        is_pad = ~(teacher > float("-inf"))
        student = (torch.einsum("bh,bch->bc", q, d) / temperature).masked_fill(is_pad, float("-inf"))
        target, log_probs = teacher.to(student.dtype).log_softmax(-1), student.log_softmax(-1)
        terms = target.exp() * (target.masked_fill(is_pad, 0) - log_probs.masked_fill(is_pad, 0))
        return terms.sum(-1).mean() if len(terms) else terms.sum()


def pair_ranking(scores: Tensor, grades: Tensor) -> Tensor:
    """log(1 + Σ_{(i,j): y_i < y_j} exp(s_i − s_j)): a pair with a lower grade should have a lower score.

    Args:
        scores: `(pairs,)` similarities divided by a temperature.
        grades: `(pairs,)` numbers; equal grades are not compared.

    Returns:
        A scalar; 0 if all grades are equal.
    """
    order = grades.argsort(stable=True)
    ranked, graded = scores[order], grades[order].contiguous()
    # Σ_j over higher grades of exp(−s_j) is a suffix of the sorted pairs: no matrix of all combinations is needed
    suffix = torch.cat([torch.logcumsumexp(-ranked.flip(0), dim=0).flip(0), ranked.new_full((1,), float("-inf"))])
    above = torch.searchsorted(graded, graded, right=True)
    terms = ranked + suffix[above]  # −inf where no pair has a higher grade
    return torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), dim=0)


def cosent(left: Tensor, right: Tensor, grades: Tensor, *, temperature: float = 0.05) -> Tensor:
    """CoSENT: pair ranking of cosines, in float32.

    *CoSENT: Consistent Sentence Embedding via Similarity Ranking* (Huang et al., 2024); also the second term of
    *AnglE-optimized Text Embeddings* (arXiv 2309.12871).

    Args:
        left: `(pairs, hidden)`, not normalised.
        right: `(pairs, hidden)`.
        grades: `(pairs,)` how similar the texts of a pair are; only the order of grades matters.
        temperature: τ; its inverse is called scale elsewhere.

    Examples:
        >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> round(float(cosent(x, y, torch.tensor([1, 0]), temperature=1.0)), 4)  # log(1 + exp(0 - 1))
        0.3133
    """
    with full_float32(left.device.type):
        cosines = cosine_similarity(full_precision(left), full_precision(right), dim=-1)
        return pair_ranking(cosines / _check_temperature(temperature), grades)


def angle(left: Tensor, right: Tensor, grades: Tensor, *, temperature: float = 0.05) -> Tensor:
    """AnglE: pair ranking of angles between complex vectors, in float32.

    *AnglE-optimized Text Embeddings* (arXiv 2309.12871), Eqs. 5–8. The first and second half of a vector are the real
    and imaginary parts z of hidden / 2 complex numbers; a pair scores |Σ (Re u + Im u)| with u = z·conj(w) / (|z||w|).

    Args:
        left: `(pairs, hidden)`, of any length; hidden is even.
        right: `(pairs, hidden)`.
        grades: `(pairs,)`, as in `cosent`.
        temperature: τ.

    Raises:
        ValueError: an odd number of dimensions.
    """
    with full_float32(left.device.type):
        return pair_ranking(angle_similarity(left, right) / _check_temperature(temperature), grades)


def angle_similarity(left: Tensor, right: Tensor) -> Tensor:
    """|cos(x, y) + cos(x, Jy)| with J the turn by 90° of every complex dimension: `(pairs,)`; 1 for x = y.

    This equals the complex division in the paper: Σ Re u is the cosine of x and y, Σ Im u that of x and Jy.
    """
    if left.shape[-1] % 2:
        raise ValueError(f"{left.shape[-1]} dimensions do not split into real and imaginary parts; use an even number")
    x, y = full_precision(left), full_precision(right)
    real, imaginary = y.chunk(2, dim=-1)
    turned = torch.cat([-imaginary, real], dim=-1)
    return (cosine_similarity(x, y, dim=-1) + cosine_similarity(x, turned, dim=-1)).abs()


def _check_temperature(temperature: float) -> float:
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}; it must be positive")
    return temperature


def _cosines(queries: Tensor, candidates: Tensor) -> Tensor:
    """Return the cosines of all pairs, `(queries, candidates)`."""
    return normalize(full_precision(queries), dim=-1) @ normalize(full_precision(candidates), dim=-1).T


def full_precision(vectors: Tensor) -> Tensor:
    """Return vectors in float32, or in float64 if they are."""
    return vectors if vectors.dtype == torch.float64 else vectors.float()
