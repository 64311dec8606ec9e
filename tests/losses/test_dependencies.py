"""Targets of compression: against a full decomposition in float64, in a loop, and whatever the random numbers are."""

from __future__ import annotations

import math

import pytest
import torch

from embrew.losses import espresso
from embrew.losses.espresso import (
    compression_target,
    dependency,
    per_text_target,
    principal_dependencies,
    with_signs,
)


def texts(rows: int = 20, width: int = 64, scale: float = 1.0, layers: int = 3) -> torch.Tensor:
    return scale * torch.randn(layers, rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def loop(x: torch.Tensor, k: int) -> torch.Tensor:
    """One layer after the other, the full decomposition, the same rule of signs."""
    targets = []
    for layer in x.double():
        a = torch.stack([torch.softmax(row, 0) for row in layer.T @ layer / math.sqrt(layer.shape[1])])
        u, s, _ = torch.linalg.svd(a)
        columns = u[:, :k] * s[:k]
        for j in range(k):
            if columns[columns[:, j].abs().argmax(), j] < 0:
                columns[:, j] *= -1
        targets.append(layer @ columns)
    return torch.stack(targets)


@pytest.mark.parametrize("svd", ["auto", "exact"])
@pytest.mark.parametrize(("rows", "width", "k", "scale"), [(20, 64, 24, 0.3), (20, 64, 64, 1.0), (100, 64, 16, 0.7)])
def test_against_a_full_decomposition(svd, rows, width, k, scale):
    """Few texts (a spectrum that decays), all dimensions, and many texts (a flat one)."""
    x = texts(rows, width, scale)
    found = compression_target(x.float(), k, svd=svd)  # type: ignore[arg-type]
    wanted = loop(x, k)
    assert found.dtype == torch.float32 and not found.requires_grad
    assert (found - wanted).norm() <= 1e-4 * wanted.norm()
    assert compression_target(x, k, svd=svd).dtype == torch.float64  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "scale", "allowed"), [(256, 0.5, 2e-4), (400, 1.0, None)])
def test_a_wide_matrix_with_a_flat_spectrum_has_a_bounded_cost(rows, scale, allowed, monkeypatch, caplog):
    """No full decomposition; the result is near one wherever neighbouring singular values differ enough."""
    monkeypatch.setattr(espresso, "WIDE", 100)
    espresso._log_flat.cache_clear()
    k, x = 32, texts(rows, 256, scale, layers=1)
    solve, sizes, degrees = torch.linalg.eigh, [], []
    filtered = espresso._chebyshev

    def counted(matrix: torch.Tensor, basis: torch.Tensor, degree: int, half: float) -> torch.Tensor:
        degrees.append(degree)
        return filtered(matrix, basis, degree, half)

    monkeypatch.setattr(torch.linalg, "eigh", lambda a: sizes.append(len(a)) or solve(a))
    monkeypatch.setattr(espresso, "_chebyshev", counted)
    with caplog.at_level("INFO", logger=espresso.__name__):
        found = principal_dependencies(x.float(), k)[0].double()
    assert max(sizes) <= k + espresso.OVERSAMPLING and sum(degrees) == espresso.MAX_PRODUCTS
    assert [line.getMessage() for line in caplog.records if "are iterated 32 times" in line.getMessage()]
    a = torch.softmax(x[0].T @ x[0] / 16, dim=-1)
    u, s, _ = torch.linalg.svd(a)
    wanted = x[0] @ (u[:, :k] * s[:k])

    def missed(columns: torch.Tensor) -> float:
        target = x[0] @ columns
        return float((target * (target * wanted).sum(0).sign() - wanted).norm() / wanted.norm())

    torch.manual_seed(0)
    public_u, public_s, _ = torch.svd_lowrank(a, q=k)
    assert float(found.norm() / s[:k].norm()) == pytest.approx(1.0, abs=1e-4), "as much of A as k columns can hold"
    if allowed is not None:
        assert missed(found) <= allowed < missed(public_u * public_s) / 10
    assert torch.equal(principal_dependencies(x.float(), k)[0].double(), found)


def test_from_other_texts():
    """As when a batch is spread over processes: every one has its rows of the target of all."""
    x = texts().float()
    for compression in ("dependencies", "direct", "max_k"):
        whole = compression_target(x, 12, compression=compression)  # type: ignore[arg-type]
        half = compression_target(x[:, 10:], 12, compression=compression, source=x)  # type: ignore[arg-type]
        torch.testing.assert_close(half, whole[:, 10:])


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_a_matrix_for_every_text(scale):
    """Against the matrix formed and decomposed in full, from small vectors to ones with outliers."""
    x = texts(rows=4, width=48, scale=scale, layers=1)[0]
    x[0, 3] = 12 * scale
    found = per_text_target(x, 40)
    for row, got in zip(x, found, strict=True):
        a = torch.softmax(row[:, None] * row / math.sqrt(48), dim=-1)
        u, s, _ = torch.linalg.svd(a)
        certain = (s[:40] > 1e-9 * s[0]) & (s[:40] - s[1:41] > 1e-6 * s[0])
        wanted = row @ with_signs(u[:, :40] * s[:40])
        torch.testing.assert_close(got[certain], wanted[certain], rtol=1e-6, atol=1e-9 * float(row.norm()))
        assert certain.sum() >= 3
        assert got[~certain].abs().max() <= 1e-5 * row.norm()


def test_direct_is_the_principal_components_of_the_texts():
    x = texts(rows=10)[0]
    found = compression_target(x, 16, compression="direct")
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    torch.testing.assert_close(found[:, :9].abs(), (u * s)[:, :9].abs(), rtol=1e-8, atol=1e-8)
    assert (found[:, 10:] == 0).all(), "ten texts have ten components at most"


def test_the_largest_dependencies():
    x = texts()[0]
    largest = torch.stack([torch.sort(row, descending=True).values[:7] for row in dependency(x)])
    torch.testing.assert_close(compression_target(x, 7, compression="max_k"), x @ largest)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="k=65 of 64 dimensions; give 1 to 64"):
        compression_target(texts(), 65)
    with pytest.raises(ValueError, match="goes with compression=dependencies, not direct"):
        compression_target(texts(), 6, compression="direct", per_text=True)
