"""Every case twice: the global batch in one process, then a shard of it in each of two; -m ... OUT in both.

`OUT` becomes a safetensors file with loss and gradients of both. Encoders are in `tests.distributed.matrix`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from embrew.distributed import gather, sum_over_processes
from embrew.methods import Contrastive
from embrew.methods.embedding import text_keys

WORLD = 2
Shards = list[dict[str, Any]]  # the batches of the processes; a single one holds the global batch
Result = dict[str, Tensor]


class Projection(nn.Module):
    """A stand-in for an encoder, in float64: given vectors times one trained matrix."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 5, generator=generator, dtype=torch.float64))


class Vectors(nn.Module):
    """A contrastive loss of projected vectors; `batch` holds vectors and text keys by role."""

    def __init__(self, objective: Contrastive) -> None:
        super().__init__()
        self.objective, self.encoder = objective, Projection()

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        embeddings = {role: batch[role] @ self.encoder.weight for role in ("query", "document")}
        return self.objective.loss(embeddings, batch)


class Squares(nn.Module):
    """Weighted squares of gathered rows, whose weights depend on the place in the global batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Projection()

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        everything = gather(rows @ self.encoder.weight)
        place = torch.arange(1, len(everything) + 1, dtype=torch.float64)
        return {"loss": (everything.square().sum(-1) * place).sum()}


def rows_of(*counts: int) -> tuple[Shards, Shards]:
    """Random rows, a given number per process: shards, and the global batch."""
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(count, 6, generator=generator, dtype=torch.float64) for count in counts]
    return [{"rows": part} for part in parts], [{"rows": torch.cat(parts)}]


def vectors_of(
    negatives: tuple[int, int], *, repeated: bool = False, pairs: tuple[int, int] = (3, 3)
) -> tuple[Shards, Shards]:
    """Three pairs per process with that many hard negatives; `repeated`: texts of one process are also in the other."""
    generator = torch.Generator().manual_seed(2)
    shards: Shards = []
    for number, (count, rows) in enumerate(zip(negatives, pairs, strict=True)):
        words = [f"{number}-{i}" for i in range(rows + count)]
        asked = [f"q{number}-{i}" for i in range(rows)]
        if repeated:
            words[1], words[-1], asked[2] = "everywhere", "q0-0", "asked in both"
        shards.append(
            {
                "query": torch.randn(rows, 6, generator=generator, dtype=torch.float64),
                "document": torch.randn(rows + count, 6, generator=generator, dtype=torch.float64),
                "query_keys": text_keys(asked),
                "document_keys": text_keys(words),
            }
        )
    joint = {
        key: torch.cat([shard[key] for shard in shards])
        if key.startswith("query")
        else torch.cat(
            [shard[key][:rows] for shard, rows in zip(shards, pairs, strict=True)]
            + [shard[key][rows:] for shard, rows in zip(shards, pairs, strict=True)]
        )
        for key in shards[0]
    }
    return shards, [joint]


def measure(module: nn.Module, batch: dict[str, Any], parameters: Callable[[], Any]) -> Result:
    """Loss and gradients of one call."""
    module.zero_grad(set_to_none=True)
    loss = module(**batch)["loss"]
    loss.backward()
    result = {f"grad {name}": p.grad.clone() for name, p in parameters() if p.requires_grad}
    return {"loss": loss.detach().clone(), **result}


def cases() -> dict[str, tuple[nn.Module, tuple[Shards, Shards]]]:
    """Modules with their shards and global batch, by name."""
    plain = Contrastive(temperature=0.5)
    symmetric = Contrastive(temperature=0.5, symmetric=True)
    both = Contrastive(temperature=0.5, symmetric=True, candidates="both")
    return {
        "gather": (Squares(), rows_of(2, 5)),
        "gather, one process empty": (Squares(), rows_of(0, 3)),
        "negatives in one process": (Vectors(plain), vectors_of((0, 4))),
        "repeated texts": (Vectors(symmetric), vectors_of((1, 3), repeated=True)),
        "unequal": (Vectors(plain), vectors_of((2, 1), pairs=(1, 5))),
        "unequal, symmetric": (Vectors(symmetric), vectors_of((2, 1), pairs=(1, 5))),
        "unequal, both sides": (Vectors(both), vectors_of((2, 1), pairs=(1, 5))),
    }


def main(out: str) -> None:
    """Measure all cases alone in the first process, then together, and write them from the first."""
    torch.set_num_threads(1)
    found, rank = cases(), int(os.environ["RANK"])
    tensors: Result = {}
    for name, (module, (_, joint)) in found.items() if rank == 0 else ():
        for key, value in measure(module, joint[0], module.named_parameters).items():
            tensors[f"{name} | joint | {key}"] = value
    distributed.init_process_group("gloo")
    assert (distributed.get_world_size(), distributed.get_rank()) == (WORLD, rank)
    for name, (module, (shards, _)) in found.items():
        wrapped = DistributedDataParallel(module)  # averages gradients over processes, as in training
        result = measure(wrapped, shards[rank], module.named_parameters)
        result["loss"] = sum_over_processes(result["loss"]) / WORLD
        for key, value in result.items():
            tensors[f"{name} | split | {key}"] = value
    if rank == 0:
        save_file(tensors, out)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
