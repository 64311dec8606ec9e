"""Every case twice: the global batch in one process, then a shard of it in each of two; -m ... FOLDER OUT in both.

`FOLDER` holds a tiny causal LM, `OUT` becomes a safetensors file with loss and gradients of both.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from embrew.distributed import gather, mean_gradients, sum_over_processes
from embrew.encoder import Encoder
from embrew.methods import (
    Alignment,
    Angle,
    Compression,
    Contrastive,
    EmbeddingObjective,
    Epic,
    Espresso,
    InContext,
    Matryoshka,
    Matryoshka2d,
    Objective,
)
from embrew.methods.embedding import text_keys
from embrew.settings.encoder import Demonstrations, Pooling
from embrew.training.step import MiniBatchSize, TrainStep
from tests.conftest import SENTENCES, stir

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


@cache
def opened(folder: str) -> Encoder:
    """The encoder that most cases copy."""
    return _opened(folder)


def encoder(folder: str, **settings: Any) -> Encoder:
    return _opened(folder, **settings) if settings else copy.deepcopy(opened(folder))


def _opened(folder: str, **settings: Any) -> Encoder:
    built = Encoder.from_pretrained(
        folder,
        dtype="float32",
        device="cpu",
        memory_tokens=3,
        template="{instruction}{text}{memory}",
        pooling=Pooling("mean", "memory"),
        **{"attention": "bidirectional", **settings},
    )
    built.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(built.backbone)
    return built.double().train()


def pairs_of(
    encoder: Encoder, objective: Objective, negatives: tuple[int, ...], *, first: int = 2
) -> tuple[Shards, Shards]:
    """Four pairs, two a process or `first` in the first one, with ragged hard negatives."""
    rows = [
        {"query": text[5:20], "positive": text, "negatives": [f"{text[8:16]} {n}" for n in range(count)]}
        for text, count in zip(SENTENCES, negatives, strict=False)
    ]
    for row, count in zip(rows, negatives, strict=False):
        row |= {"scores": [1.5, 0.5, 1.0, 0.2][: 1 + count], "data_set": 1}
    parts = rows[:first], rows[first:]
    return [objective.collate(part, encoder) for part in parts], [objective.collate(rows, encoder)]


def texts_of(encoder: Encoder, objective: Compression, *, first: int = 2) -> tuple[Shards, Shards]:
    """Four texts, two a process or `first` in the first one; later ones have many more target tokens."""
    texts = [SENTENCES[0][:18], SENTENCES[1][:24], SENTENCES[2] * 2, SENTENCES[3] * 2]
    rows = [{"text": text} for text in texts]
    parts = rows[:first], rows[first:]
    return [objective.collate(part, encoder) for part in parts], [objective.collate(rows, encoder)]


def unequal(folder: str) -> dict[str, tuple[nn.Module, tuple[Shards, Shards]]]:
    """Whatever gathers, with one row in the first process and three in the second."""
    negatives = (2, 1, 1, 3)
    base = Contrastive(temperature=0.2)
    pairs: dict[str, EmbeddingObjective] = {
        "contrastive": base,
        "contrastive, symmetric": Contrastive(temperature=0.2, symmetric=True),
        "contrastive, both sides": Contrastive(temperature=0.2, candidates="both", mask_same_text=False),
        "contrastive, distilled": Contrastive(temperature=0.2, distillation_weight=0.5),
        "contrastive, own documents": Contrastive(temperature=0.2, in_batch_negatives=False),
        "angle, pairs": Angle(rows="pairs", in_batch_weight=2.0),
        "matryoshka": Matryoshka(base=base, dims=[32, 8]),
        "matryoshka_2d": Matryoshka2d(base=base, dims=[32, 8]),
        "espresso": Espresso(base=base, compression_size=8),
    }
    found: dict[str, tuple[nn.Module, tuple[Shards, Shards]]] = {
        f"vectors, {name}": (Vectors(objective), vectors_of((2, 1), pairs=(1, 5)))
        for name, objective in (
            ("unequal", Contrastive(temperature=0.5)),
            ("unequal, symmetric", Contrastive(temperature=0.5, symmetric=True)),
            ("unequal, both sides", Contrastive(temperature=0.5, symmetric=True, candidates="both")),
        )
    }
    for name, objective in pairs.items():
        built = encoder(folder)
        found[f"unequal, {name}"] = TrainStep(built, objective), pairs_of(built, objective, negatives, first=1)
    cached = encoder(folder)
    found["unequal, contrastive, cached"] = (
        TrainStep(cached, base, MiniBatchSize(rows=1)),
        found["unequal, contrastive"][1],
    )
    in_context: dict[str, tuple[InContext, Demonstrations]] = {
        "epic": (Epic(temperature=0.2, plain_weight=0.5), Demonstrations(compress="pair")),
        "icl": (InContext(temperature=0.2, mask_demo_negatives=True), Demonstrations(compress="none")),
        "icl, own documents": (
            InContext(temperature=0.2, mask_demo_negatives=True, in_batch_negatives=False),
            Demonstrations(compress="none"),
        ),
    }
    for name, (shown, demonstrations) in in_context.items():
        built = encoder(folder, attention="causal", demonstrations=demonstrations, max_length=80)
        shown.setup(built)
        found[f"unequal, {name}"] = TrainStep(built.double(), shown), pairs_of(built, shown, negatives, first=1)
    built, kl = encoder(folder), Compression(min_context_tokens=4, min_target_tokens=3)
    found["unequal, compression, kl"] = TrainStep(built, kl), texts_of(built, kl, first=1)
    built, aligned = encoder(folder, attention="causal"), Alignment(variant="kl")
    found["unequal, alignment"] = TrainStep(built, aligned), pairs_of(built, aligned, negatives, first=1)
    return found


def cases(folder: str) -> dict[str, tuple[nn.Module, tuple[Shards, Shards]]]:
    """Modules with their shards and global batch, by name."""
    found: dict[str, tuple[nn.Module, tuple[Shards, Shards]]] = {
        "gather": (Squares(), rows_of(2, 5)),
        "gather, one process empty": (Squares(), rows_of(0, 3)),
        "vectors, negatives in one process": (Vectors(Contrastive(temperature=0.5)), vectors_of((0, 4))),
        "vectors, repeated texts": (
            Vectors(Contrastive(temperature=0.5, symmetric=True)),
            vectors_of((1, 3), repeated=True),
        ),
    }
    return {**found, **unequal(folder)}


def measure(module: nn.Module, batch: dict[str, Any], parameters: Callable[[], Any]) -> Result:
    """Loss and gradients of one call."""
    module.zero_grad(set_to_none=True)
    loss = module(**batch)["loss"]
    loss.backward()
    result = {f"grad {name}": p.grad.clone() for name, p in parameters() if p.requires_grad}
    return {"loss": loss.detach().clone(), **result}


def main(folder: str, out: str) -> None:
    """Measure all cases alone in the first process, then together, and write them from the first."""
    torch.set_num_threads(1)
    found, rank = cases(folder), int(os.environ["RANK"])
    tensors: Result = {}
    for name, (module, (_, joint)) in found.items() if rank == 0 else ():
        for key, value in measure(module, joint[0], module.named_parameters).items():
            tensors[f"{name} | joint | {key}"] = value
    distributed.init_process_group("gloo")
    assert (distributed.get_world_size(), distributed.get_rank()) == (WORLD, rank)
    for name, (module, (shards, _)) in found.items():
        wrapped = DistributedDataParallel(module)  # averages gradients over processes, as in training
        if getattr(module, "mini_batch_size", None) is None:
            result = measure(wrapped, shards[rank], module.named_parameters)
        else:  # as StageTrainer does it
            with wrapped.no_sync():
                measure(wrapped, shards[rank], module.named_parameters)
            mean_gradients(p for p in module.parameters() if p.requires_grad)
            result = {f"grad {name}": p.grad.clone() for name, p in module.named_parameters() if p.requires_grad}
            result["loss"] = module(**shards[rank])["loss"].detach().clone()
        result["loss"] = sum_over_processes(result["loss"]) / WORLD
        for key, value in result.items():
            tensors[f"{name} | split | {key}"] = value
    if rank == 0:
        save_file(tensors, out)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
