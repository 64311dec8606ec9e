"""A pretended GPU: the CPU under the drill's code, so that each line runs without one. Nothing here is a measurement.

What `torch.cuda` measures is answered from clocks and memory of the process. Kernels that only a GPU has are replaced
by the loops that the tests use for them.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import gpu
import torch
from torch import Tensor

GIB = 2**30
BENCHMARKS: dict[str, dict[str, Any]] = {  # module: its constants, small
    "ctkd": {"QWEN3_VOCABULARY": 300},
    "ctkd_gpu": {"VOCABULARY": 300, "GPU_LENGTHS": (6, 6), "MICRO_BATCHES": (1, 2)},
    "packed_gpu": {"TEXTS": 24, "TRAINED": 8, "BATCH_TOKENS": 512, "ROUNDS": 2, "VARLEN": "varlen_fa", "CLOSE": 0.2},
    "single_parts": {"ROWS": 8, "WIDTH": 16, "VOCABULARY": 300},
}


class Event:
    """Stands for `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        """Note the time."""
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, other: Event) -> float:
        """Return milliseconds."""
        return 1e3 * (other.at - self.at) + 1e-6


def used(*_: Any) -> int:
    """Return bytes that this process has had in memory."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def kl_and_gradient(teacher: Tensor, student: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Stand for the fused kernel: the loss of each row; the gradient overwrites the student's logits."""
    q, slope = _logits(student, bias, softcap)
    p = _logits(teacher, bias, softcap)[0].log_softmax(-1)
    q = q.log_softmax(-1)
    student.copy_((q.exp() - p.exp()) * slope)
    return (p.exp() * (p - q)).sum(-1)


def nll_and_gradient(logits: Tensor, labels: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Stand for the fused kernel of cross-entropy."""
    x, slope = _logits(logits, bias, softcap)
    x = x.log_softmax(-1)
    logits.copy_((x.exp() - torch.nn.functional.one_hot(labels, x.shape[-1])) * slope)
    return -x.gather(1, labels[:, None])[:, 0]


def _logits(logits: Tensor, bias: Tensor | None, softcap: float | None) -> tuple[Tensor, Tensor | float]:
    x = logits.float() if bias is None else logits.float() + bias
    if softcap is None:
        return x, 1.0
    bent = torch.tanh(x / softcap)
    return softcap * bent, 1 - bent**2


FUSED = SimpleNamespace(kl_and_gradient=kl_and_gradient, nll_and_gradient=nll_and_gradient)


def tiny_qwen3(hidden: int, intermediate: int, layers: int = 2) -> Any:
    """Stand for `ctkd.qwen3`: another width for each, and few layers."""
    from transformers import Qwen3Config

    from drill.sizes import TINY

    shape = {**TINY, "hidden_size": 32 if hidden < 2048 else 64, "vocab_size": 300}
    return Qwen3Config(**shape, tie_word_embeddings=True)


@contextmanager
def pretended() -> Iterator[None]:
    """Let the drill's modules take the CPU for a GPU."""
    import pytest
    from tests import flash_stand_in

    from embrew.losses import fused_chunk

    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, stand_in in {
            "Event": Event,
            "synchronize": nothing,
            "reset_peak_memory_stats": nothing,
            "max_memory_allocated": used,
            "memory_allocated": lambda *_: 0,
            "memory_reserved": used,
            "mem_get_info": lambda *_: (8 * GIB, 16 * GIB),
            "get_device_name": lambda *_: "pretended",
        }.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(gpu, "DEVICE", "cpu")
        patch.setattr(gpu, "SIDE", 64)
        patch.setattr(gpu, "COPIED", 2**10)
        patch.setattr(fused_chunk, "kernels", lambda device: FUSED)
        flash_stand_in.install(patch)
        yield


def shrink(module: Any) -> None:
    """Make the constants of a benchmark's module small."""
    for name, value in BENCHMARKS.get(module.__name__, {}).items():
        setattr(module, name, value)
    if hasattr(module, "qwen3"):
        module.qwen3 = tiny_qwen3
