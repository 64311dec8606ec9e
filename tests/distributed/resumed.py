"""Stages that are stopped, and resumed in another number of processes; -m tests.distributed.resumed FOLDER BEGUN.

With `BEGUN` 0, every case is trained twice in the processes of now: without a stop (`whole`), and stopped after its
checkpoint (`stopped`). With another number, what that many processes have stopped is resumed. Each writes the rows that
were read, batch by batch, and the losses that were logged.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate import PartialState

from embrew import assembly
from embrew.encoder import Encoder
from embrew.recipe import Recipe
from embrew.training import stages
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES
from tests.distributed import runs

STEPS, SAVED, STOPPED_IN = 8, 3, 5  # six steps are an epoch
ROWS = 24
SHARD = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
MODES = ("ddp", "fsdp2")
CAUSAL = ("joint",)


def each(rows: int, batches: int = 1) -> dict[str, Any]:
    """Rows of each process in a batch, and batches in a step."""
    training = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": batches}
    return {"batch": None, "training": training, "data": {"path": "texts.jsonl"}}


CASES: dict[str, tuple[dict[str, Any], bool]] = {  # a stage, and whether it trains a LoRA
    "compression": ({"objective": {"type": "compression", "min_context_tokens": 4}, **each(4)}, True),
    "accumulated": ({"objective": {"type": "compression", "min_context_tokens": 4}, **each(2, 2)}, True),
    "clone": ({"objective": {"type": "compression", "divergence": "nll"}, **each(4)}, False),
    "contrastive": ({"batch": {"size": 4, "mini_batch_size": 2}, "data": {"path": "pairs.jsonl"}}, True),
    "joint": (
        {"objective": {"type": "joint", "base": {"type": "contrastive"}}, **each(4), "data": {"path": "pairs.jsonl"}},
        True,
    ),
}


def write_data(folder: Path) -> None:
    """Texts and pairs of very different lengths; each says which row it is."""
    texts = [f"{i} {SENTENCES[i % 5][: 30 + 5 * i]}" for i in range(ROWS)]
    pairs = [{"query": text[:18], "positive": text * (1 + i % 3)} for i, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))


def recipe(folder: Path, case: str) -> Recipe:
    """Eight steps of four, eight or sixteen rows, with AdamW; a checkpoint after each third."""
    stage, lora = CASES[case]
    training = {"max_steps": STEPS, "save_steps": SAVED, "logging_steps": 1, **stage.get("training", {})}
    made = runs.recipe(
        folder, {**stage, "training": training, "data": {"path": str(folder / stage["data"]["path"])}}, lora=lora
    )
    attention = "causal" if case in CAUSAL else "bidirectional"
    return made.model_copy(update={"encoder": made.encoder.model_copy(update={"attention": attention})})


def train(folder: Path, case: str, out: Path, *, stop: bool = False, resume: bool = False) -> None:
    """Train a case; write which rows this process has read, and the losses of the steps."""
    made, rank = recipe(folder, case), PartialState().process_index
    read: list[list[str]] = []
    losses: dict[int, float] = {}
    kind = type(assembly.objective(made.stages[0].objective))
    collate, log, step = kind.collate, StageTrainer.log, StageTrainer.training_step

    def watched(self: Any, rows: Any, encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        read.append([(row.get("query") or row["text"]).split()[0] for row in rows])
        return collate(self, rows, encoder, seed=seed)

    def logged(self: StageTrainer, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            losses[self.state.global_step] = logs["loss"]
        log(self, logs, *args, **kwargs)

    def stopped(self: StageTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if stop and self.state.global_step + 1 == STOPPED_IN:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with ExitStack() as patched:
        patched.enter_context(patch.object(kind, "collate", watched))
        patched.enter_context(patch.object(StageTrainer, "log", logged))
        patched.enter_context(patch.object(StageTrainer, "training_step", stopped))
        try:
            stages.train(made, out, resume=resume)
            assert not stop, "was not stopped"
        except KeyboardInterrupt:
            assert stop
    (out.parent / f"{out.name}-{rank}.json").write_text(json.dumps({"rows": read, "losses": losses}))


def begin(folder: Path, processes: int) -> None:
    """Train every case without a stop, and with one."""
    for mode in MODES[: 1 if processes == 1 else 2]:
        with launched(mode):
            for case in CASES:
                out = folder / f"{processes}-{mode}" / case
                if PartialState().is_main_process:
                    out.mkdir(parents=True)
                PartialState().wait_for_everyone()
                train(folder, case, out / "whole")
                train(folder, case, out / "stopped", stop=True)
                PartialState().wait_for_everyone()


def resume(folder: Path, begun: int, processes: int) -> None:
    """Resume every case, each from the mode it was begun in; a copy, since others resume it too."""
    for mode in MODES[: 1 if processes == 1 else 2]:
        for before in MODES[:1] if begun == 1 else MODES if processes == 1 else (mode,):
            with launched(mode):
                for case in CASES:
                    source = folder / f"{begun}-{before}" / case
                    out = source / f"resumed-{processes}-{mode}"
                    if PartialState().is_main_process:
                        shutil.copytree(source / "stopped", out)
                    PartialState().wait_for_everyone()
                    train(folder, case, out, resume=True)
                    PartialState().wait_for_everyone()


def launched(mode: str) -> Any:
    """As the launcher says it."""
    return patch.dict(os.environ, SHARD if mode == "fsdp2" else {})


def main(place: str, begun: str) -> None:
    """Begin the stages, or resume those that some number of processes have begun."""
    torch.set_num_threads(1)
    gc.freeze()
    process = PartialState(cpu=True)
    if int(begun):
        resume(Path(place), int(begun), process.num_processes)
    else:
        begin(Path(place), process.num_processes)
    if process.num_processes > 1:
        process.wait_for_everyone()
        process.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
