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
from embrew.modeling.encoder import Encoder
from embrew.modeling.settings.demonstrations import Demonstrations
from embrew.modeling.settings.pooling import Pooling
from embrew.objectives import OBJECTIVES, EmbeddingObjective, Objective
from embrew.recipe import StageConfig
from embrew.training import sharding
from embrew.training.gradcache import Chunks
from embrew.training.resuming.checkpoint_files import trained_tensors
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES, stir
from tests.objectives import cases

CHOSEN: dict[str, dict[str, Any]] = {  # in place of the first settings of the battery
    "angle": {"rows": "pairs", "in_batch_weight": 2.0},
    "epic": {"temperature": 0.2, "mask_demo_negatives": True},
    "icl": {"temperature": 0.2},
    "espresso": {"base": {"type": "angle", "rows": "pairs"}, "compression_size": 8, "layers": "learned"},
}
SETTINGS = {name: CHOSEN.get(name, cases.SETTINGS[name][0]) for name in OBJECTIVES}
EMBEDDING = [name for name, kind in OBJECTIVES.items() if issubclass(kind, EmbeddingObjective)]
ENCODERS: dict[str, dict[str, Any]] = {
    **cases.ENCODERS,
    "epic": {"demonstrations": Demonstrations(compress="all", every=8)},
    "icl": {"demonstrations": Demonstrations(compress="none", text_tokens=12)},
}
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


def rows_for(objective: Objective) -> Dataset:
    """Rows whose lengths, and numbers of negatives, differ much: processes disagree on how many passes they need."""
    if objective.rows_kind == "text":
        return Dataset.from_list([{"text": f"{text[: 20 + 9 * i]}. {text}"} for i, text in enumerate(SENTENCES * 2)])
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
    memory = {"memory_tokens": 3, "template": "{instruction}{text}{memory}", "pooling": Pooling("mean", "memory")}
    settings: dict[str, Any] = {
        "attention": "bidirectional",
        **({} if case.objective in cases.BARE else memory),
        **ENCODERS.get(case.objective, {}),
    }
    built = Encoder.from_pretrained(Path(folder) / case.family, dtype="float32", device="cpu", **settings)
    if case.lora:
        built.backbone.add_lora({"r": 4, "lora_alpha": 8})
        stir(built.backbone)
    else:
        built.backbone.train_all()
    return built.train()


def train(case: Case, folder: str) -> dict[str, Tensor]:
    """Loss and weights after a step, in however many processes."""
    set_seed(1)
    encoder = encoder_for(case, folder)
    objective = build.objective({"type": case.objective, **SETTINGS[case.objective]})
    objective.setup(encoder)
    rows = objective.precompute(objective.prepare(rows_for(objective), encoder), encoder)
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
    trainer = StageTrainer(step, args, rows, str(case))
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
