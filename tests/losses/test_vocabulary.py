import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import log_softmax
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embrew.losses import token_divergences, token_kl, token_nll

ROWS, HIDDEN, VOCABULARY = 7, 6, 23


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def naive_kl(teacher, student, weight, bias=None, row_weights=None):
    """All logits at once, in float64."""
    bias = 0.0 if bias is None else bias.double()
    log_p = log_softmax(teacher.double() @ weight.double().T + bias, -1)
    log_q = log_softmax(student.double() @ weight.double().T + bias, -1)
    rows = (log_p.exp() * (log_p - log_q)).sum(-1)
    return rows.mean() if row_weights is None else (rows * row_weights.double()).sum()


def naive_nll(hidden, labels, weight, bias=None, row_weights=None):
    bias = 0.0 if bias is None else bias.double()
    log_q = log_softmax(hidden.double() @ weight.double().T + bias, -1)
    rows = -log_q[torch.arange(len(labels)), labels]
    return rows.mean() if row_weights is None else (rows * row_weights.double()).sum()


@given(
    kind=st.sampled_from(["kl", "nll"]),
    rows=st.integers(1, 9),
    chunk_size=st.one_of(st.none(), st.integers(1, 12)),
    with_bias=st.booleans(),
    row_weights=st.one_of(st.none(), st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=9, max_size=9)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=120, deadline=None)
def test_chunks_change_nothing(kind, rows, chunk_size, with_bias, row_weights, seed):
    weight = numbers(VOCABULARY, HIDDEN, seed=seed)
    bias = numbers(VOCABULARY, seed=seed + 1) if with_bias else None
    weights = None if row_weights is None else torch.tensor(row_weights[:rows])
    one = numbers(rows, HIDDEN, seed=seed + 2).requires_grad_()
    two = one.detach().clone().requires_grad_()
    if kind == "kl":
        teacher = numbers(rows, HIDDEN, seed=seed + 3)
        loss = token_kl(teacher, one, weight, bias, row_weights=weights, chunk_size=chunk_size)
        expected = naive_kl(teacher, two, weight, bias, weights)
    else:
        labels = torch.randint(0, VOCABULARY, (rows,), generator=torch.Generator().manual_seed(seed))
        loss = token_nll(one, labels, weight, bias, row_weights=weights, chunk_size=chunk_size)
        expected = naive_nll(two, labels, weight, bias, weights)
    (3.0 * loss).backward()
    (3.0 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-10, atol=1e-12)


def test_gradcheck():
    weight, bias = numbers(VOCABULARY, HIDDEN, seed=0), numbers(VOCABULARY, seed=1)
    teacher, hidden = numbers(5, HIDDEN, seed=2), numbers(5, HIDDEN, seed=3).requires_grad_()
    labels, weights = torch.tensor([0, 22, 3, 3, 9]), torch.tensor([0.5, 0.0, 2.0, 1.0, 0.1])
    options = {"row_weights": weights, "chunk_size": 2}
    assert torch.autograd.gradcheck(lambda h: token_kl(teacher, h, weight, bias, **options), hidden)
    assert torch.autograd.gradcheck(lambda h: token_nll(h, labels, weight, bias, **options), hidden)


def test_underflowed_teacher_probabilities():
    weight = numbers(VOCABULARY, HIDDEN, seed=0, dtype=torch.float32)
    teacher = numbers(ROWS, HIDDEN, seed=1, dtype=torch.float32, scale=100.0)
    student = numbers(ROWS, HIDDEN, seed=2, dtype=torch.float32).requires_grad_()
    assert bool(((teacher @ weight.T).softmax(-1) == 0).any())
    loss = token_kl(teacher, student, weight, chunk_size=3)
    loss.backward()
    assert torch.isfinite(student.grad).all()
    assert loss.item() == pytest.approx(naive_kl(teacher, student, weight).item(), rel=1e-4)


@pytest.mark.parametrize(("head", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_bfloat16_states(head, tolerance):
    weight = numbers(VOCABULARY, HIDDEN, seed=0).to(head)
    teacher, student = (numbers(ROWS, HIDDEN, seed=i).bfloat16() for i in (1, 2))
    labels = torch.arange(ROWS)
    one, two = student.clone().requires_grad_(), student.double().requires_grad_()
    kl, nll = token_kl(teacher, one, weight, chunk_size=2), token_nll(one, labels, weight, chunk_size=2)
    expected = naive_kl(teacher, two, weight), naive_nll(two, labels, weight)
    assert kl.dtype == nll.dtype == torch.float32
    assert kl.item() == pytest.approx(expected[0].item(), rel=tolerance)
    assert nll.item() == pytest.approx(expected[1].item(), rel=tolerance)
    (kl + nll).backward()
    sum(expected).backward()
    assert one.grad.dtype == torch.bfloat16
    assert (one.grad - two.grad).abs().max() <= 0.02 * two.grad.abs().max()


def test_autocast_does_not_reach_the_loss():
    weight = numbers(VOCABULARY, HIDDEN, seed=0, dtype=torch.float32)
    teacher, student = (numbers(ROWS, HIDDEN, seed=i, dtype=torch.float32) for i in (1, 2))
    expected = token_kl(teacher, student, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert token_kl(teacher, student, weight).item() == expected.item()


class Blocks(TorchDispatchMode):
    """Watches tensors whose last axis is the vocabulary: the largest, how much lives at a time, rows projected."""

    def __init__(self, head: torch.Tensor) -> None:
        super().__init__()
        self.width, self.own = len(head), head.untyped_storage().data_ptr()
        self.living: dict[int, tuple[weakref.ref, int]] = {}
        self.largest = self.peak = self.projected = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.ndim == 2 and tensor.shape[-1] == self.width:
                storage = tensor.untyped_storage()
                if storage.data_ptr() == self.own:
                    continue
                self.largest = max(self.largest, tensor.numel())
                self.living[storage.data_ptr()] = (weakref.ref(storage), storage.nbytes())
                self.projected += len(tensor) if func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out) else 0
        self.living = {place: entry for place, entry in self.living.items() if entry[0]() is not None}
        self.peak = max(self.peak, sum(size for _, size in self.living.values()))
        return out


@pytest.mark.parametrize(("kind", "blocks"), [("kl", 1.625), ("nll", 1)])  # an eighth for a block of bool
def test_memory_is_a_few_blocks_of_chunk_by_vocabulary(kind, blocks):
    rows, chunk_size, vocabulary = 50, 8, 331
    weight = numbers(vocabulary, HIDDEN, seed=0, dtype=torch.float32)
    teacher = numbers(rows, HIDDEN, seed=1, dtype=torch.float32)
    student = numbers(rows, HIDDEN, seed=2, dtype=torch.float32).requires_grad_()
    gc.collect()
    with Blocks(weight) as watched:
        if kind == "kl":
            loss = token_kl(teacher, student, weight, chunk_size=chunk_size)
        else:
            loss = token_nll(student, torch.zeros(rows, dtype=torch.long), weight, chunk_size=chunk_size)
        loss.backward()
    assert watched.largest == chunk_size * vocabulary
    assert watched.peak <= blocks * 4 * chunk_size * vocabulary
    assert watched.projected == (2 * rows if kind == "kl" else rows)  # every row once, none besides


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("trained", [("weight",), ("weight", "bias", "hidden")])
@pytest.mark.parametrize("kind", ["kl", "nll"])
def test_a_head_that_is_trained(kind, trained, chunk_size):
    parts = {"weight": numbers(VOCABULARY, HIDDEN, seed=0), "bias": numbers(VOCABULARY, seed=1)}
    parts["hidden"] = numbers(ROWS, HIDDEN, seed=2)
    weights, teacher, labels = numbers(ROWS, seed=4).abs(), numbers(ROWS, HIDDEN, seed=3), torch.arange(ROWS) * 3
    ours, theirs = ({k: v.clone().requires_grad_(k in trained) for k, v in parts.items()} for _ in range(2))
    weight, bias, hidden = theirs.values()
    if kind == "kl":
        loss = token_kl(
            teacher, ours["hidden"], ours["weight"], ours["bias"], row_weights=weights, chunk_size=chunk_size
        )
        log_p = log_softmax(teacher @ weight.detach().T + bias.detach(), -1)
        log_q = log_softmax(hidden @ weight.T + bias, -1)
        expected = ((log_p.exp() * (log_p - log_q)).sum(-1) * weights).sum()
    else:
        loss = token_nll(
            ours["hidden"], labels, ours["weight"], ours["bias"], row_weights=weights, chunk_size=chunk_size
        )
        expected = naive_nll(hidden, labels, weight, bias, weights)
    (3.0 * loss).backward()
    (3.0 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    for name in parts:
        assert (ours[name].grad is not None) == (name in trained)
        if name in trained:
            torch.testing.assert_close(ours[name].grad, theirs[name].grad, rtol=1e-10, atol=1e-12)


def test_divergences_differentiate_the_head():
    """Here both sides are of one model, and both have a gradient."""
    one, other = numbers(ROWS, HIDDEN, seed=1), numbers(ROWS, HIDDEN, seed=2)
    weight, again = (numbers(VOCABULARY, HIDDEN, seed=0).requires_grad_() for _ in range(2))
    token_divergences(one, other, weight, chunk_size=3).sum().backward()
    log_p, log_q = log_softmax(one @ again.T, -1), log_softmax(other @ again.T, -1)
    (log_p.exp() * (log_p - log_q)).sum().backward()
    torch.testing.assert_close(weight.grad, again.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("label", [-100, -1, VOCABULARY])
def test_labels_outside_the_vocabulary_are_refused(label):
    labels = torch.tensor([0, label, 1])
    with pytest.raises(ValueError, match=f"the vocabulary has {VOCABULARY}"):
        token_nll(torch.zeros(3, HIDDEN), labels, torch.zeros(VOCABULARY, HIDDEN))
