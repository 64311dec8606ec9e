"""Losses on pairs with grades: pairs with higher grades should be more similar."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from embrew.float32 import full_float32
from embrew.losses.contrastive import full_precision


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
        left, right: `(pairs, hidden)`, not normalised.
        grades: `(pairs,)` how similar the texts of a pair are; only the order of grades matters.
        temperature: τ; its inverse is called scale elsewhere.

    Examples:
        >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> round(float(cosent(x, y, torch.tensor([1, 0]), temperature=1.0)), 4)  # log(1 + exp(0 - 1))
        0.3133
    """
    with full_float32(left.device.type):
        cosines = cosine_similarity(full_precision(left), full_precision(right), dim=-1)
        return pair_ranking(cosines / _checked(temperature), grades)


def angle(left: Tensor, right: Tensor, grades: Tensor, *, temperature: float = 0.05) -> Tensor:
    """AnglE: pair ranking of angles between complex vectors, in float32.

    *AnglE-optimized Text Embeddings* (arXiv 2309.12871), Eqs. 5–8. The first and second half of a vector are the real
    and imaginary parts z of hidden / 2 complex numbers; a pair scores |Σ (Re u + Im u)| with u = z·conj(w) / (|z||w|).

    Args:
        left, right: `(pairs, hidden)`, of any length; hidden is even.
        grades: as in `cosent`.
        temperature: τ.

    Raises:
        ValueError: an odd number of dimensions.
    """
    with full_float32(left.device.type):
        return pair_ranking(angle_similarity(left, right) / _checked(temperature), grades)


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


def _checked(temperature: float) -> float:
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}; it must be positive")
    return temperature
