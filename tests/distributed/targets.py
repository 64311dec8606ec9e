"""ESE's targets in each of two processes, which `tests.distributed.runs` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed

from embrew.distributed import gather
from embrew.losses import compression_target
from embrew.methods import Contrastive, Espresso
from embrew.methods.embedding import text_keys

LAYERS, ROWS, WIDTH, K = 2, 40, 96, 16
SPECTRA = {"decaying": torch.arange(1, WIDTH + 1) ** -1.0, "flat": 3 * torch.ones(WIDTH)}
KINDS: dict[str, dict[str, Any]] = {
    "dependencies": {},
    "exact": {"svd": "exact"},
    "direct": {"compression": "direct"},
    "max_k": {"compression": "max_k"},
}


def texts_of(rank: int, spectrum: Tensor) -> Tensor:
    """The vectors of one process, other ones in each."""
    generator = torch.Generator().manual_seed(10 + rank)
    return torch.randn(LAYERS, ROWS, WIDTH, generator=generator) * spectrum


def targets(source: Tensor) -> dict[str, Tensor]:
    """Of every kind."""
    return {name: compression_target(source, K, **settings) for name, settings in KINDS.items()}


def loss(vectors: Tensor) -> Tensor:
    """ESE's, of a batch of pairs."""
    queries, documents = vectors.chunk(2, dim=1)
    keys = {f"{role}_keys": text_keys([f"{role} {i}" for i in range(ROWS // 2)]) for role in ("query", "document")}
    return Espresso(base=Contrastive(), compression_size=K).loss({"query": queries, "document": documents}, keys)[
        "loss"
    ]


def measure(out: Path) -> None:
    """Write targets of the texts of all processes to `targets-<rank>.safetensors`, by case and seed.

    Under a global seed of this process, then under another one.
    """
    rank = distributed.get_rank()
    found: dict[str, Tensor] = {}
    for name, spectrum in SPECTRA.items():
        own = texts_of(rank, spectrum)
        source = gather(own.transpose(0, 1).contiguous()).transpose(0, 1)  # as the objective gathers it
        for seed in (rank, 100 + rank):
            torch.manual_seed(seed)
            torch.rand(rank)
            before = torch.get_rng_state()
            found |= {f"{name} | {kind} | {seed // 100}": target for kind, target in targets(source).items()}
            found[f"{name} | loss | {seed // 100}"] = loss(own)
            assert torch.equal(torch.get_rng_state(), before), "drew from the global generator"
    save_file({key: tensor.contiguous() for key, tensor in found.items()}, out / f"targets-{rank}.safetensors")
