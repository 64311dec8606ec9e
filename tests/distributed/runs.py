"""All that the default tests look at in two processes, in one process group; -m tests.distributed.runs FOLDER in both.

`FOLDER` holds a tiny causal LM (`llama`) and data; what the processes find and train is written below `FOLDER/runs2`.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate import PartialState
from safetensors.torch import save_file

from embrew.encoder import Encoder
from embrew.methods import Contrastive
from embrew.methods import autoregembed as alignment
from embrew.recipe import Recipe
from embrew.training.stages import train
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES
from tests.distributed import matrix, targets

DATA_SETS = {"a": 13, "b": 9, "c": 22}
MIXED_STEPS, STOPPED_AT = 12, 3  # more than an epoch; one more than the last checkpoint


def write_data(folder: Path) -> None:
    """Pairs of very different lengths, in data sets whose rows say where they are from; and texts."""
    for name, count in DATA_SETS.items():
        texts = [f"{SENTENCES[i % 5][: 12 + 3 * i]} {i}" for i in range(count)]
        rows = [
            {"query": f"{name} {t[:14]}", "positive": t * (1 + i % 3), "negative": t[5:]} for i, t in enumerate(texts)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [f"{text} {other}" for text in SENTENCES for other in SENTENCES] * 2
    texts = [{"text": f"{text} Part {i}."} for i, text in enumerate(pairs)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))


def recipe(folder: Path, stage: dict[str, Any], *, lora: bool = True) -> Recipe:
    """A contrastive stage on the tiny model, dropout off."""
    return Recipe.from_values(
        {
            "encoder": {
                "model": str(folder / "llama"),
                "dtype": "float32",
                "template": "{instruction}{text}{memory}",
                "memory_tokens": 3,
                "attention": "bidirectional",
                "pooling": {"mode": "mean", "over": "memory"},
                "max_length": {"query": 64, "document": 64},
                "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0} if lora else None,
            },
            "stages": [
                {
                    "name": "one",
                    "objective": {"type": "contrastive"},
                    "data": {"path": str(folder / "c.jsonl")},
                    "batch": {"size": 4},
                    **stage,
                    "training": {"learning_rate": 1e-3, "use_cpu": True, "save_steps": 2, **stage.get("training", {})},
                }
            ],
        }
    )


def mixed(folder: Path) -> Recipe:
    """Three data sets, one a batch."""
    data = [{"path": str(folder / f"{name}.jsonl")} for name in DATA_SETS]
    return recipe(folder, {"data": data, "training": {"max_steps": MIXED_STEPS, "save_strategy": "no"}})


def cached(folder: Path) -> Recipe:
    """LoRA, gradient caching and checkpointing, four steps."""
    return recipe(
        folder,
        {"batch": {"size": 4, "mini_batch_size": 2}, "training": {"max_steps": 4, "activation_checkpointing": True}},
    )


def full(folder: Path) -> Recipe:
    """Every weight, three steps."""
    return recipe(folder, {"training": {"max_steps": 3, "learning_rate": 1e-4}}, lora=False)


def aligned(folder: Path, processes: int) -> Recipe:
    """Alignment, whose reference scores the processes share out; two steps of four triplets."""
    stage = {
        "objective": {"type": "alignment"},
        "batch": None,
        "training": {"max_steps": 2, "per_device_train_batch_size": 4 // processes, "save_strategy": "no"},
    }
    made = recipe(folder, stage)
    return made.model_copy(update={"encoder": made.encoder.model_copy(update={"attention": "causal"})})


def compressed(folder: Path, processes: int, *, evaluated: bool) -> Recipe:
    """Compression, which measures the share of the gap closed; two steps of four texts."""
    stage = {
        "objective": {"type": "compression", "min_context_tokens": 4},
        "data": {"path": str(folder / "texts.jsonl")},
        "batch": None,
        "training": {"max_steps": 2, "per_device_train_batch_size": 4 // processes, "save_strategy": "no"},
    }
    made = recipe(folder, stage).model_dump(mode="json")
    return Recipe.from_values({**made, "evaluation": {"dev": ["unused"], "at": [4]} if evaluated else None})


def train_compressed(folder: Path, out: Path, processes: int, *, evaluated: bool) -> None:
    """Train; only the first process has an encoder scored."""
    made = compressed(folder, processes, evaluated=evaluated)
    evaluate: Any = (lambda encoder: {"dev": float(PartialState().process_index)}) if evaluated else None
    train(made, out, evaluate=evaluate)


def train_aligned(folder: Path, out: Path, processes: int) -> None:
    """Train, with reference scores in files of five rows, and write how many rows this process has scored."""
    scored = [0]
    compute = alignment.Alignment._references

    def counted(self: alignment.Alignment, rows: Any, encoder: Encoder) -> list[list[float]]:
        scored[0] += len(rows)
        return compute(self, rows, encoder)

    with (
        patch.object(alignment, "SHARD_SIZE", 5),
        patch.object(alignment.Alignment, "_references", counted),
    ):
        train(aligned(folder, processes), out / "aligned")
    (out / f"scored-{PartialState().process_index}.json").write_text(json.dumps(scored[0]))


def train_mixed(folder: Path, out: Path) -> None:
    """Train, and write which queries were read together, batch by batch; one file a process."""
    seen: list[list[str]] = []
    collate = Contrastive.collate

    def watched(self: Contrastive, rows: Any, encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        seen.append([row["query"] for row in rows])
        return collate(self, rows, encoder, seed=seed)

    with patch.object(Contrastive, "collate", watched):
        train(mixed(folder), out / "mixed")
    (out / f"batches-{PartialState().process_index}.json").write_text(json.dumps(seen))


def train_counted(what: Recipe, out: Path, *, stop: int | None = None, resume: bool = False) -> int:
    """Train; with `stop`, be stopped before that step. How many steps were begun."""
    step, count = StageTrainer.training_step, [0]

    def counted(self: StageTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        count[0] += 1
        if count[0] == stop:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with patch.object(StageTrainer, "training_step", counted), suppress(KeyboardInterrupt):
        train(what, out, resume=resume)
    return count[0]


def main(place: str) -> None:
    """ESE's targets, cells of the matrix, the mixture under data parallelism, then sharded runs."""
    torch.set_num_threads(1)
    gc.freeze()
    folder = Path(place)
    process = PartialState(cpu=True)
    assert process.num_processes == 2
    out = folder / "runs2"
    out.mkdir(exist_ok=True)
    targets.measure(out)
    cells = matrix.all_of(matrix.QUICK, place)
    if process.is_main_process:
        save_file(cells, out / "matrix.safetensors")
    train_mixed(folder, out)
    train_aligned(folder, out, 2)
    train_compressed(folder, out / "compressed", 2, evaluated=True)
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    assert train_counted(cached(folder), out / "cached", stop=STOPPED_AT) == STOPPED_AT
    if process.is_main_process:
        shutil.copytree(out / "cached", out / "cached-stopped")
    process.wait_for_everyone()
    assert train_counted(cached(folder), out / "cached", resume=True) == 2, "two of four were done"
    train(full(folder), out / "full")
    train_compressed(folder, out / "compressed-sharded", 2, evaluated=False)
    process.wait_for_everyone()
    process.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
