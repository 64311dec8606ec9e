"""Measure the overhead of a forward pass on a GPU: its time however few its positions, in tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from embrew.modeling.model.attention import Attention
from embrew.modeling.model.cost import MOST
from embrew.modeling.model.forward import forward
from embrew.modeling.model.positions import max_positions
from embrew.modeling.text.tokens import Segment, Tokens

Kind = Literal["training", "inference"]
FEW, ROWS, LENGTH = 16, 16, 512  # tokens of the small batch, a single row; rows and tokens per row of the large one
REPEATED = 4  # passes per batch, of which the fastest counts: the first ones compile and reserve memory


def is_measured(inner: Any) -> bool:
    """Return whether the overhead of a model is measured: on CUDA, where weights are whole, without full determinism.

    A measurement differs from one process to the next, so that processes may group rows differently.
    """
    is_sharded = hasattr(next(inner.parameters()), "full_tensor")
    return is_on_cuda(inner.device) and not is_sharded and not torch.are_deterministic_algorithms_enabled()


def is_on_cuda(device: torch.device) -> bool:
    """Return whether a device is CUDA; on a CPU, the overhead follows from the shape of the model alone."""
    return device.type == "cuda"


def measure(inner: Any, attention: Attention, kind: Kind) -> float:
    """Return the overhead of a forward pass in tokens, a power of two from 1 to `cost.MOST`.

    With times a + b · tokens of a small and of a large batch, it is a / b. In training, a pass includes its backward
    pass. Random states are restored, and no weight gets a gradient. The large batch is halved until it fits.
    """
    devices = [inner.device] if inner.device.type == "cuda" else []
    length = int(min(LENGTH, max_positions(inner)))
    with torch.inference_mode(False), torch.set_grad_enabled(kind == "training"), torch.random.fork_rng(devices):
        few = _seconds_of(inner, attention, kind, rows=1, length=min(FEW, length))
        rows = ROWS
        while True:
            try:
                many = _seconds_of(inner, attention, kind, rows=rows, length=length)
                break
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
            rows //= 2  # here, where the error no longer holds on to the tensors
    more = rows * length - min(FEW, length)
    per_token = max((many - few) / more, few / (2 * MOST))
    return 2.0 ** round(math.log2(min(MOST, max(1.0, few / per_token - min(FEW, length)))))


def seconds(compute: Callable[[], None]) -> float:
    """Return the seconds that a computation takes on CUDA, launches included."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    compute()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _seconds_of(inner: Any, attention: Attention, kind: Kind, *, rows: int, length: int) -> float:
    vocabulary = inner.get_input_embeddings().weight.shape[0]
    ids = torch.linspace(0.05 * vocabulary, 0.6 * vocabulary, rows * length).long().view(rows, length)
    tokens = Tokens(ids, torch.full_like(ids, int(Segment.TEXT))).to(inner.device)
    return min(seconds(partial(_pass, inner, attention, tokens, kind)) for _ in range(REPEATED))


def _pass(inner: Any, attention: Attention, tokens: Tokens, kind: Kind) -> None:
    embedded = inner.get_input_embeddings()(tokens.input_ids).detach().requires_grad_(kind == "training")
    states = forward(inner, embedded, tokens, attention, None)
    if kind == "training":
        trained = [weight for weight in inner.parameters() if weight.requires_grad]
        torch.autograd.grad(states.sum(), [embedded, *trained], allow_unused=True)
