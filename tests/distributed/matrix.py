"""What may be combined, each trained for a step of plain gradient descent.

torchrun -m tests.distributed.matrix FOLDER OUT GROUP

`FOLDER` holds tiny causal LMs by family, `OUT` becomes a safetensors file with losses and weights of the group's cases.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from safetensors.torch import save_file
from torch import Tensor
from transformers import set_seed

from embrew.encoder import Encoder
from embrew.methods import OBJECTIVES, EmbeddingObjective, Objective
from embrew.recipe import StageConfig, build
from embrew.settings.encoder import Demonstrations, Pooling
from embrew.training import sharding
from embrew.training.checkpoints import trained_tensors
from embrew.training.step import MiniBatchSize, TrainStep
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES, stir
from tests.objectives import cases

CHOSEN: dict[str, dict[str, Any]] = {  # in place of the first settings of the battery
    "angle": {"rows": "pairs", "in_batch_weight": 2.0},
    "embedding_distillation": {"layers": [1], "dims": [32, 8], "spread_weight": 0.5},
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
MORE: dict[str, list[dict[str, Any]]] = {  # settings of objectives, besides those of the battery
    "contrastive": [{"in_batch_negatives": False}, {"temperature": 0.2, "distillation_weight": 0.5}],
    "espresso": [{"base": {"type": "contrastive"}, "compression_size": 8, "per_text": True}],
}
READS: dict[str, dict[str, Any]] = {  # encoders with weights after, or besides, the language model
    "latent": {"pooling": Pooling("mean", "text", latents=4, heads=2, head_width=8)},
    "projection": {"pooling": Pooling("mean", "text", projection=20)},
    "learnable": {"demonstrations": Demonstrations(compress="pair", learnable=5)},
}
ROWS = 4


@dataclass(frozen=True)
class Case:
    """One cell of the matrix.

    Attributes:
        lora: a LoRA, or all weights.
        rows: of all processes in an optimiser step.
        adamw: three steps of AdamW with clipped gradients, in place of one of plain gradient descent.
        embeddings: a LoRA, and the whole embedding matrix.
        merged: after a LoRA that was merged: the original LM is a second copy.
        bf16: matrix products in bfloat16; trained weights are float32.
        variant: settings of the objective: -1 of `SETTINGS`, others of `variants_of`.
        reads: another encoder, of `READS`.
    """

    objective: str
    lora: bool
    checkpointing: bool = False
    cached: bool = False
    sharded: bool = False
    family: str = "llama"
    accumulated: bool = False
    adamw: bool = False
    embeddings: bool = False
    merged: bool = False
    bf16: bool = False
    rows: int = ROWS
    variant: int = -1
    reads: str = ""

    @property
    def reference(self) -> Case:
        """The same training by one process in float32, with nothing that saves memory; batches have own negatives."""
        in_batch = self.objective in (*EMBEDDING, "joint")
        accumulated = self.accumulated and in_batch
        return replace(self, checkpointing=False, cached=False, sharded=False, accumulated=accumulated, bf16=False)

    @property
    def mode(self) -> str:
        """What is trained, and how."""
        flags = ["LoRA" if self.lora else "full"]
        switches = ("embeddings", "merged", "checkpointing", "cached", "accumulated", "adamw", "bf16", "sharded")
        return " ".join([*flags, *(name for name in switches if getattr(self, name))])

    def __str__(self) -> str:
        which = [str(self.variant)] * (self.variant >= 0) + [self.reads] * bool(self.reads)
        return " ".join([self.objective, *which, self.mode, self.family, *([str(self.rows)] * (self.rows != ROWS))])


def variants_of(objective: str) -> list[dict[str, Any]]:
    """Settings of an objective that have the same meaning in any number of processes: no dropout, what is gathered."""
    found = [*cases.SETTINGS[objective], *MORE.get(objective, [])]
    return [one for one in found if "dropout" not in str(one) and one.get("gather", True)]


BOTH = (True, False)
FAMILIES = ("llama", "llama-tied", "qwen3")
CASES = [
    Case(objective, lora, checkpointing, cached)
    for objective in OBJECTIVES
    for lora in BOTH
    for checkpointing in BOTH
    for cached in (BOTH if objective in EMBEDDING else (False,))
]
COMPARES = [name for name, kind in OBJECTIVES.items() if kind.reads_original_lm]
SHARDED = [
    *(replace(case, sharded=True) for case in CASES),
    *(
        Case(objective, lora, sharded=True, rows=8, **{how: True})
        for objective in OBJECTIVES
        for lora in BOTH
        for how in ("accumulated", "adamw")
    ),
    *(
        Case(objective, True, sharded=True, variant=i)
        for objective in OBJECTIVES
        for i in range(len(variants_of(objective)))
    ),
    *(Case(objective, True, sharded=True, family=f, embeddings=True) for objective in COMPARES for f in FAMILIES[:2]),
    *(Case(objective, True, sharded=True, merged=True, checkpointing=c) for objective in COMPARES for c in BOTH),
    *(
        Case(objective, lora, sharded=True, family=family)
        for objective in ("compression", "language_model", "mntp", "contrastive")
        for family in FAMILIES[1:]
        for lora in BOTH
    ),
    *(Case("contrastive", lora, cached=c, sharded=True, reads="latent") for lora in BOTH for c in BOTH),
    Case("contrastive", True, cached=True, sharded=True, reads="projection"),
    *(Case("epic", True, cached=c, sharded=True, reads="learnable") for c in BOTH),
]

COPIED = [Case("compression", False, sharded=True), Case("alignment", True, sharded=True, merged=True)]  # a second copy
NANO = [
    *(Case(objective, True, sharded=True, family="nano") for objective in OBJECTIVES),
    *(replace(case, family="nano") for case in COPIED),
]
FOUR = [
    *(Case(objective, True) for objective in OBJECTIVES),
    *(
        Case(objective, True, checkpointing=True, cached=objective in EMBEDDING, sharded=True)
        for objective in OBJECTIVES
    ),
    *(Case(objective, False, sharded=True, accumulated=True, rows=8) for objective in OBJECTIVES),
    *COPIED,
    *NANO,
]
SHORT = [
    Case(objective, lora, sharded=sharded, bf16=True)
    for objective in ("compression", "alignment", "bottleneck", "contrastive")
    for lora in BOTH
    for sharded in BOTH
]
GROUPS = {"all": [*CASES, *SHARDED, *NANO], "four": FOUR, "bfloat16": SHORT}

QUICK = [  # sharded contrastive stages are among the whole runs of `tests.distributed.runs`
    Case("contrastive", True, checkpointing=True, cached=True),
    Case("matryoshka", False, cached=True),
    Case("epic", True, cached=True),
    Case("mntp", True, accumulated=True),
    Case("compression", True, accumulated=True),
    Case("compression", True, checkpointing=True, sharded=True),
    Case("compression", False, sharded=True),
    Case("alignment", True, sharded=True, variant=2),
    Case("joint", False, sharded=True, accumulated=True, family="llama-tied"),
]


def rows_for(objective: Objective, *, times: int = 2) -> Dataset:
    """Rows, five `times`, whose lengths and numbers of negatives differ: processes need unequal numbers of passes."""
    if objective.rows_kind == "text":
        texts = [f"{text[: 20 + 9 * i]}. {text}" for i, text in enumerate(SENTENCES * times)]
        vectors = np.random.default_rng(0).standard_normal((len(texts), 32)).tolist()
        return Dataset.from_dict({"text": texts, "vector": vectors})
    if objective.rows_kind == "scored":
        pairs = zip(SENTENCES * times, SENTENCES[1:] * times, strict=False)
        return Dataset.from_list(
            [{"sentence1": a[: 9 + 4 * i], "sentence2": b, "score": i % 3} for i, (a, b) in enumerate(pairs)]
        )
    texts = [f"{text[: 8 + 5 * i]} {i}" for i, text in enumerate(SENTENCES * times)]
    return Dataset.from_list(
        [
            {
                "query": text[5:20],
                "positive": text * (1 + i % 3),
                "negatives": [f"{n} {text[:9]}" for n in range(i % 4)],
                "scores": [1.0 + i, 0.5, 2.0, 0.3][: 1 + i % 4],
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
        **READS.get(case.reads, {}),
    }
    model = "nano" if case.family == "nano" else Path(folder) / case.family
    built = Encoder.from_pretrained(model, dtype="float32", device="cpu", **settings)
    if case.merged:
        built.backbone.add_lora({"r": 2})
        stir(built.backbone)
        built.merge_adapter()
    if case.lora:
        built.backbone.add_lora({"r": 4, "lora_alpha": 8}, train_embeddings=case.embeddings)
        stir(built.backbone)
    else:
        built.backbone.train_all()
    return built.train()


def train(case: Case, folder: str) -> dict[str, Tensor]:
    """Losses and weights after a step, or three, in however many processes."""
    set_seed(1)
    encoder = encoder_for(case, folder)
    settings = SETTINGS[case.objective] if case.variant < 0 else variants_of(case.objective)[case.variant]
    objective = build.objective({"type": case.objective, **settings})
    objective.setup(encoder)
    rows = rows_for(objective, times=2 if case.rows == ROWS else 8)
    rows = objective.precompute(objective.prepare(rows, encoder), encoder)
    training: dict[str, Any] = {
        "max_steps": 3, "learning_rate": 1e-4, "max_grad_norm": 0.5,
    } if case.adamw else {"max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}  # fmt: skip
    training |= {
        "lr_scheduler_type": "constant", "save_strategy": "no", "logging_steps": 1,
        "activation_checkpointing": case.checkpointing, "bf16": case.bf16,
    }  # fmt: skip
    batches = 2 if case.accumulated else 1
    batch: dict[str, Any] = {"batch": {"size": case.rows // batches}}
    if case.objective not in EMBEDDING:
        batch = {}
        training["per_device_train_batch_size"] = case.rows // PartialState(cpu=True).num_processes // batches
    training["gradient_accumulation_steps"] = batches
    stage = StageConfig.model_validate(
        {"name": "one", "objective": {"type": case.objective}, "data": {"path": "none"}, "training": training, **batch}
    )
    args = build.training_arguments(stage, objective, Path("unused"), seed=3)
    if case.sharded:
        sharding.shard(encoder, torch.device("cpu"), compute=torch.bfloat16 if case.bf16 else None)
    step = TrainStep(encoder, objective, MiniBatchSize(rows=2) if case.cached else None)
    trainer = StageTrainer(step, args, rows, str(case))
    assert trainer.fit(None) == training["max_steps"]
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"losses": torch.tensor(losses), **trained_tensors(trainer.step)}


def all_of(cases: Iterable[Case], folder: str) -> dict[str, Tensor]:
    """Losses and weights of several cases, by case and name."""
    gc.freeze()  # the trainer collects garbage at every start, which takes longer than these steps
    return {f"{case} | {name}": tensor for case in cases for name, tensor in train(case, folder).items()}


def main(folder: str, out: str, group: str) -> None:
    """Train all cases of a group in as many processes as there are, and write them from the first."""
    torch.set_num_threads(1)
    process = PartialState(cpu=True)
    tensors = all_of(GROUPS[group], folder)
    if process.is_main_process:
        save_file(tensors, out)
    process.wait_for_everyone()
    process.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
