"""What may be combined, each trained for a step of plain gradient descent.

torchrun -m tests.distributed.matrix FOLDER OUT

`FOLDER` holds tiny causal LMs by family, `OUT` becomes a safetensors file with the losses and weights of every case.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from safetensors.torch import save_file
from torch import Tensor
from transformers import set_seed

from embrew import build
from embrew.modeling.embedding.pooling import Pooling
from embrew.modeling.encoder import Encoder
from embrew.modeling.settings.demonstrations import Demonstrations
from embrew.recipe import StageConfig
from embrew.training import sharding
from embrew.training.gradcache import Chunks
from embrew.training.resuming.checkpoint_files import trained_tensors
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES, stir

OBJECTIVES: dict[str, dict[str, Any]] = {
    "contrastive": {},
    "angle": {"rows": "pairs", "in_batch_weight": 2.0},
    "matryoshka": {"base": {"type": "contrastive", "temperature": 0.2}, "dims": [32, 8]},
    "matryoshka_2d": {"base": {"type": "contrastive", "temperature": 0.2}, "dims": [32, 8]},
    "epic": {"temperature": 0.2, "mask_demo_negatives": True},
    "icl": {"temperature": 0.2},
    "espresso": {"base": {"type": "angle", "rows": "pairs"}, "compression_size": 8, "layers": "learned"},
    "compression": {"min_context_tokens": 4, "min_target_tokens": 3},
    "mntp": {},
    "language_model": {},
}
EMBEDDING = ("contrastive", "angle", "matryoshka", "matryoshka_2d", "epic", "icl", "espresso")
DEMONSTRATIONS = {
    "epic": Demonstrations(compress="all", every=8),
    "icl": Demonstrations(compress="none", text_tokens=12),
}
BARE = ("mntp", "language_model")  # read texts without memory tokens
CAUSAL = ("language_model",)
JOINT = 4


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    objective: str
    lora: bool
    checkpointing: bool = False
    cached: bool = False
    sharded: bool = False
    family: str = "llama"
    accumulated: bool = False

    def __str__(self) -> str:
        flags = ["LoRA" if self.lora else "full"]
        flags += [name for name in ("checkpointing", "cached", "sharded", "accumulated") if getattr(self, name)]
        return " ".join([self.objective, *flags, self.family])


BOTH = (True, False)
CASES = [
    Case(objective, lora, checkpointing, cached)
    for objective in OBJECTIVES
    for lora in BOTH
    for checkpointing in BOTH
    for cached in (BOTH if objective in EMBEDDING else (False,))
]
SHARDED = [
    *(
        Case("contrastive", lora, checkpointing, cached, True)
        for lora in BOTH
        for checkpointing in BOTH
        for cached in BOTH
    ),
    *(
        Case(objective, True, False, cached, True)
        for objective in ("angle", "matryoshka", "matryoshka_2d")
        for cached in BOTH
    ),
    Case("contrastive", False, cached=True, sharded=True, family="llama-tied"),
    Case("contrastive", True, cached=True, sharded=True, family="qwen3"),
]

QUICK = [
    Case("contrastive", True, checkpointing=True, cached=True),
    Case("matryoshka", False, cached=True),
    Case("epic", True),
    Case("epic", True, cached=True),
    Case("icl", True, cached=True),
    Case("contrastive", True, checkpointing=True, cached=True, sharded=True),
    Case("contrastive", False, sharded=True),
    Case("mntp", True, accumulated=True),
    Case("compression", True, accumulated=True),
    Case("language_model", False, accumulated=True),
]


def rows_for(objective: str) -> Dataset:
    """Rows whose lengths, and numbers of negatives, differ much: processes disagree on how many passes they need."""
    if objective not in EMBEDDING:
        return Dataset.from_list([{"text": text[: 20 + 9 * i] + text} for i, text in enumerate(SENTENCES * 2)])
    texts = [f"{text[: 8 + 5 * i]} {i}" for i, text in enumerate(SENTENCES * 2)]
    return Dataset.from_list(
        [
            {
                "query": text[5:20],
                "positive": text * (1 + i % 3),
                "negatives": [f"{n} {text[:9]}" for n in range(i % 4)],
            }
            for i, text in enumerate(texts)
        ]
    )


def encoder_for(case: Case, folder: str) -> Encoder:
    """A tiny encoder with memory tokens (but for the objective that has none), LoRA or all weights open."""
    memory: dict[str, Any] = (
        {}
        if case.objective in BARE
        else {
            "memory_tokens": 3,
            "template": "{instruction}{text}{memory}",
            "pooling": Pooling("mean", "memory"),
        }
    )
    built = Encoder.from_pretrained(
        Path(folder) / case.family,
        dtype="float32",
        device="cpu",
        attention="causal" if case.objective in CAUSAL else "bidirectional",
        demonstrations=DEMONSTRATIONS.get(case.objective),
        **memory,
    )
    if case.lora:
        built.backbone.add_lora({"r": 4, "lora_alpha": 8})
        stir(built.backbone)
    else:
        built.backbone.train_all()
    return built.train()


def train(case: Case, folder: str) -> dict[str, Tensor]:
    """Loss and weights after a step, in however many processes."""
    set_seed(1)
    encoder, objective = (
        encoder_for(case, folder),
        build.objective({"type": case.objective, **OBJECTIVES[case.objective]}),
    )
    objective.setup(encoder)
    training: dict[str, Any] = {
        "max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
        "save_strategy": "no", "logging_steps": 1, "activation_checkpointing": case.checkpointing,
    }  # fmt: skip
    batch: dict[str, Any] = {"batch": {"size": JOINT}}
    if case.objective not in EMBEDDING:
        batch = {}
        batches = 2 if case.accumulated else 1
        training["per_device_train_batch_size"] = JOINT // PartialState(cpu=True).num_processes // batches
        training["gradient_accumulation_steps"] = batches
    stage = StageConfig.model_validate(
        {"name": "one", "objective": {"type": case.objective}, "data": {"path": "none"}, "training": training, **batch}
    )
    args = build.training_arguments(stage, objective, Path("unused"), seed=3)
    if case.sharded:
        sharding.shard(encoder, torch.device("cpu"))
    step = TrainStep(encoder, objective, Chunks(rows=2) if case.cached else None)
    trainer = StageTrainer(step, args, rows_for(case.objective), str(case))
    assert trainer.fit(None) == 1
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"losses": torch.tensor(losses), **trained_tensors(trainer.step)}


def all_of(cases: Iterable[Case], folder: str) -> dict[str, Tensor]:
    """Losses and weights of several cases, by case and name."""
    gc.freeze()  # the trainer collects garbage at every start, which takes longer than these steps
    return {f"{case} | {name}": tensor for case in cases for name, tensor in train(case, folder).items()}


def main(folder: str, out: str) -> None:
    """Train all cases in as many processes as there are, and write them from the first."""
    torch.set_num_threads(1)
    process = PartialState(cpu=True)
    assert process.num_processes == 2
    tensors = all_of([*CASES, *SHARDED], folder)
    if process.is_main_process:
        save_file(tensors, out)
    process.wait_for_everyone()
    process.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
