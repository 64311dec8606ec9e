"""Fused kernels of losses over a vocabulary, run by Triton's interpreter on the CPU, against the eager chunk."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from embrew.losses import chunked_head, fused_chunk, token_kl, token_nll
from embrew.losses.eager_chunk import chunk_kl, chunk_nll

WIDTH = 16


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed; pip install 'triton==3.*' (about 200 MB) to run this"
)


@pytest.mark.slow
@needs_triton
@pytest.mark.skipif(INTERPRETED, reason="this is the process with the interpreter")
def test_in_a_process_with_the_interpreter():
    """Triton reads the variable when it is imported, which torch does."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.fixture
def fused(monkeypatch):
    """The kernels, interpreted; with blocks so small that a row has several, the last one partial."""
    if not INTERPRETED:
        pytest.skip("needs Triton's interpreter, in a process with TRITON_INTERPRET=1")
    from embrew.losses import fused_kernels

    monkeypatch.setattr(fused_kernels, "BLOCK", 64)
    return fused_kernels


def drawn(*sizes, dtype=torch.float32, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(scale * torch.randn(size, generator=generator)).to(dtype) for size in sizes]


def near(ours, wanted, tolerance=1e-6):
    assert (ours - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("vocabulary", [64, 150, 5])  # whole blocks, a partial last one, less than a block
@pytest.mark.parametrize(
    ("softcap", "biased", "scale"), [(None, False, 1.0), (3.0, True, 1.0), (None, True, 6.0), (0.7, False, 6.0)]
)
def test_a_chunk(vocabulary, softcap, biased, scale, fused):
    hidden, teacher, weight, bias = drawn((5, WIDTH), (5, WIDTH), (vocabulary, WIDTH), (vocabulary,), scale=scale**0.5)
    given = (weight, bias if biased else None)
    block = torch.empty(10, vocabulary)
    wanted = chunk_kl(hidden, *given, teacher, block.clone(), torch.empty(5, vocabulary), softcap)
    ours = fused_chunk.fused_chunk(fused, hidden, *given, teacher, block, softcap)
    near(ours[0], wanted[0], 2e-6)  # a small difference of sums, on both sides
    near(ours[1], wanted[1])
    labels = torch.tensor([0, vocabulary - 1, 2, vocabulary // 2, 1])
    wanted = chunk_nll(hidden, *given, labels, block[:5].clone(), softcap)
    ours = fused_chunk.fused_chunk(fused, hidden, *given, labels, block[:5], softcap)
    for one, other in zip(ours, wanted, strict=True):
        near(one, other)


def by_hand(p, q):
    """KL and its gradient in float64, term by term; 0 · log 0 = 0."""
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    terms = torch.where(p.exp() == 0, 0.0, p.exp() * (p - q))
    return terms.sum(-1), q.exp() - p.exp()


def test_logits_far_apart_and_infinite(fused):
    """A common offset of a row, an underflow, −∞ in the teacher, in both, and in the first block whole."""
    p, q = drawn((6, 200), (6, 200), scale=3.0)
    q[0] += 1e4
    p[1, 150] += 300.0
    p[2, :40] = p[3, :70] = q[3, :70] = -torch.inf
    p[4], q[4] = q[4], p[4]
    p[5] = q[5]
    ours = q.clone()
    loss = fused.kl_and_gradient(p, ours, None, None)
    wanted, gradient = by_hand(p, q)
    assert (loss.double() - wanted).abs().max() <= 2e-6 * wanted.abs().max() and loss[5].abs() <= 1e-6
    assert (ours.double() - gradient).abs().max() <= 1e-6
    q[0, 3] = -torch.inf  # where the teacher is not: KL is infinite, and its gradient is not
    ours = q.clone()
    assert fused.kl_and_gradient(p, ours, None, None)[0] == torch.inf and torch.isfinite(ours).all()
    x = q[1:].clone()
    x[:, 7] = -torch.inf
    labels = torch.tensor([0, 199, 71, 64, 63])
    wanted = torch.nn.functional.cross_entropy(x.double(), labels, reduction="none")
    ours = x.clone()
    near(fused.nll_and_gradient(ours, labels, None, None).double(), wanted)
    expected = x.double().softmax(-1) - torch.nn.functional.one_hot(labels, 200)
    assert (ours.double() - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [False, True])
def test_the_losses_of_all_rows(dtype, trained, fused, monkeypatch):
    """Through `token_kl` and `token_nll`: a last chunk of few rows, ignored rows, a scale, a trained head."""
    student, teacher, weight, bias = drawn((11, WIDTH), (11, WIDTH), (150, WIDTH), (150,), dtype=dtype)
    labels, weights = torch.arange(11) * 13, torch.tensor([1.0, 0.0] * 5 + [2.0])
    found = []
    for kernels in (lambda _: None, lambda _: fused):
        monkeypatch.setattr(chunked_head, "kernels", kernels)
        h, w = student.clone().requires_grad_(), weight.clone().requires_grad_(trained)
        how = {"scale": 0.5, "softcap": 4.0, "row_weights": weights, "chunk_size": 4}
        loss = token_kl(teacher, h, w, bias, **how) + token_nll(h, labels, w, bias, **how)
        loss.backward()
        found.append([loss.detach(), h.grad.float(), *([w.grad.float()] if trained else [])])
    for ours, wanted in zip(found[1], found[0], strict=True):
        near(ours, wanted, 1e-6 if dtype == torch.float32 else 1e-2)
    near(found[1][0], found[0][0], 1e-6 if dtype == torch.float32 else 2e-6)


def test_nothing_and_one_row(fused):
    assert fused.kl_and_gradient(torch.empty(0, 9), torch.empty(0, 9), None, None).shape == (0,)
    assert fused.nll_and_gradient(torch.zeros(1, 4), torch.tensor([2]), None, None).item() == pytest.approx(1.3862944)


def test_kernels_that_do_not_agree_are_not_used(fused, monkeypatch, caplog):
    """What decides on a GPU, on the CPU: an honest module, one that is a little wrong, one that cannot be compiled."""
    monkeypatch.setattr(fused, "BLOCK", 4096)  # as on a GPU
    assert fused_chunk.largest_gap(fused, torch.device("cpu")) <= 2e-6
    right = fused.nll_and_gradient
    wrong = SimpleNamespace(kl_and_gradient=lambda *a: 1.0001 * fused.kl_and_gradient(*a), nll_and_gradient=right)
    assert fused_chunk.largest_gap(wrong, torch.device("cpu")) > fused_chunk.AGREES
    on_gpu = SimpleNamespace(type="cuda")
    for gap, said in ((1e-3, "whose results differ by 1.0e-03"), (None, "cannot be compiled: no compiler"), (0.0, "")):
        caplog.clear()

        def measure(*_, gap=gap):
            if gap is None:
                raise RuntimeError("no compiler")
            return gap

        monkeypatch.setattr(fused_chunk, "largest_gap", measure)
        found = fused_chunk.kernels.__wrapped__(on_gpu)
        assert (found is fused) == (gap == 0.0) and said in caplog.text
    assert fused_chunk.kernels(torch.device("cpu")) is None


@pytest.mark.gpu
def test_on_a_gpu():
    device = torch.device("cuda", 0)
    assert fused_chunk.kernels(device) is not None
    from embrew.losses import fused_kernels

    assert fused_chunk.largest_gap(fused_kernels, device) <= fused_chunk.AGREES
