"""One training of Qwen3-0.6B's shape per method, by the trainer and the shipped recipes: loss, speed, memory, idleness.

Weights are random and texts are drawn from few words, so that the loss falls within some steps: what is shown is that
a method trains on a GPU, and what it costs there.
"""

from __future__ import annotations

import json
import logging
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any
from unittest import mock

import gpu
import torch
from torch import Tensor
from transformers import TrainerCallback

from drill import model, planned, sizes
from drill.child import Skipped
from drill.measure import Profile
from drill.record import Result
from embrew.modeling.text.tokens import Tokens
from embrew.recipe import Recipe
from embrew.recipe.stage import DataConfig
from embrew.training import stages

logging.basicConfig(level=logging.INFO)
Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A stage of a shipped recipe.

    Attributes:
        recipe, stage: names.
        kind: of the rows: `text`, or `pairs`.
        learning_rate: high, for few steps.
        micro, batch: texts per micro-batch, or per global batch of a contrastive stage; None: the recipe's.
        long: whether texts are long, as those that are compressed or generated.
        overrides: of the recipe.
    """

    recipe: str
    stage: str
    kind: str = "pairs"
    learning_rate: float = 1e-3
    micro: int | None = None
    batch: int | None = None
    long: bool = False
    overrides: tuple[str, ...] = ()


METHODS = {
    "compress": Method(recipe="llm2comp/qwen3-0.6b", stage="compress", kind="text", micro=16, long=True),
    "unsupervised": Method(recipe="llm2comp/qwen3-0.6b", stage="unsupervised", kind="text", batch=128),
    "supervised": Method(recipe="llm2comp/qwen3-0.6b", stage="supervised", batch=256),
    "ese": Method(recipe="ese/qwen1.5-0.5b", stage="espresso", batch=256),
    "align": Method(recipe="autoregembed/qwen3-0.6b", stage="align", micro=32),
    "bottleneck": Method(recipe="lbr/paper-qwen2-1.5b", stage="learn", micro=16, long=True, learning_rate=2e-4),
    "epic": Method(recipe="epic/qwen3-0.6b", stage="supervised", batch=64),
}


@dataclass
class Watch:
    """What is read while a stage is trained.

    Attributes:
        losses: of optimiser steps, or of their micro-batches; tokens: real ones of the timed steps.
        seconds: of the timed steps; idle: share of the profiled ones; peak: bytes in the timed and profiled ones.
    """

    losses: list[Tensor] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    idle: float | None = None
    peak: int = 0
    timing: bool = False


class Stopwatch(TrainerCallback):
    """Times some steps, and profiles the next ones."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.now, self.profile, self.began = watch, sizes.now(), Profile(), 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to time, or to profile."""
        if state.global_step == self.now.warm_up:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.watch.timing, self.began = True, time.perf_counter()
        if state.global_step == self.now.warm_up + self.now.timed:
            torch.cuda.synchronize()
            self.watch.seconds, self.watch.timing = time.perf_counter() - self.began, False
            self.profile.start()
        if state.global_step == self.now.warm_up + self.now.timed + self.now.profiled:
            self.watch.idle = self.profile.stop()
            self.watch.peak = torch.cuda.max_memory_allocated()


def qlora(method: str) -> Result:
    """Train a stage on 4-bit weights, save it and open it again.

    Raises:
        Skipped: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise Skipped("bitsandbytes is not installed; pip install 'embrew[qlora]'")
    return train(method, quantization="nf4")


def train(method: str, quantization: str | None = None) -> Result:
    """Train a stage for some steps; on 4-bit weights, with verification of the saved folder."""
    chosen, now, watch = METHODS[method], sizes.now(), Watch()
    if quantization is not None:
        chosen = replace(chosen, overrides=(f"encoder.quantization={quantization}",))
    place = model.work() / f"train-{method}-{quantization or 'whole'}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    recipe = recipe_of(chosen, data_file(chosen, place), str(model.folder()))
    with mock.patch.object(stages, "StageTrainer", watched(watch)):
        trained = stages.train(recipe, place / "run", verify="fast" if quantization else "off")
    figures = figures_of(watch, now)
    figures |= {"parameters": sum(p.numel() for p in trained.parameters())}
    figures |= planned.compare(recipe, figures["peak_gb"])
    shutil.rmtree(place)
    checks = {
        "all losses are finite": all(isfinite(float(loss)) for loss in watch.losses),
        # the few steps of the pretended device say nothing of it
        "the loss falls": gpu.DEVICE != "cuda" or figures["loss_last"] < figures["loss_first"],
        "the plan could be made, if there are plans": "plan_error" not in figures,
        "every step was timed and profiled": watch.seconds > 0 and watch.idle is not None,
    }
    return {"figures": figures, "checks": checks}


def figures_of(watch: Watch, now: sizes.Sizes) -> dict[str, Any]:
    """Return what was read."""
    losses = [float(loss) for loss in watch.losses]
    part = max(1, len(losses) // 5)
    return {
        "loss_first": statistics.mean(losses[:part]),
        "loss_last": statistics.mean(losses[-part:]),
        "tokens_per_s": watch.tokens / watch.seconds if watch.seconds else None,
        "step_ms": 1e3 * watch.seconds / now.timed,
        "tokens_per_step": watch.tokens / now.timed,
        "peak_gb": watch.peak / 2**30,
        "idle_share": watch.idle,
    }


def watched(watch: Watch) -> Callable[..., stages.StageTrainer]:
    """Return the trainer of stages, with a stopwatch, noting losses and tokens of its batches."""

    class Watched(stages.StageTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.add_callback(Stopwatch(watch))

        def training_step(self, module: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
            if watch.timing:
                watch.tokens += tokens_of(inputs)
            loss = super().training_step(module, inputs, *args, **kwargs)
            watch.losses.append(loss.detach())
            return loss

    return Watched


def tokens_of(batch: dict[str, Any]) -> int:
    """Return the real tokens of a batch."""
    return sum(sum(part.lengths) for part in batch.values() if isinstance(part, Tokens))


def recipe_of(chosen: Method, data: Path, base: str) -> Recipe:
    """Return the recipe with one stage, the drill's model and data, and few steps."""
    now = sizes.now()
    whole = Recipe.load(chosen.recipe, [f"encoder.model={base}", *chosen.overrides])
    stage = next(found for found in whole.stages if found.name == chosen.stage)
    steps = now.warm_up + now.timed + now.profiled + now.last
    training = {
        **stage.training,
        "max_steps": steps,
        "learning_rate": chosen.learning_rate,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "gradient_accumulation_steps": 1,
        "save_strategy": "no",
        "logging_steps": steps,
        "disable_tqdm": True,
    }
    training.pop("num_train_epochs", None)
    changes: dict[str, Any] = {}
    if "compression_size" in stage.objective:
        changes["objective"] = {**stage.objective, "compression_size": now.compressed}
    if chosen.micro is not None:
        training["per_device_train_batch_size"] = now.batch.get("micro", chosen.micro)
    if stage.batch is not None:
        changes["batch"] = stage.batch.model_copy(update={"size": now.batch.get("batch", chosen.batch)})
    if gpu.DEVICE != "cuda":
        training.pop("bf16", None)
    rows = DataConfig(path=str(data), instruction="Find the same words: " if chosen.kind == "pairs" else None)
    changes |= {"training": training, "data": rows, "mix": None}
    encoder = whole.encoder if gpu.DEVICE == "cuda" else whole.encoder.model_copy(update={"dtype": "float32"})
    return whole.model_copy(update={"stages": [stage.model_copy(update=changes)], "encoder": encoder})


def data_file(chosen: Method, place: Path) -> Path:
    """Write the rows of a training as JSON lines."""
    now = sizes.now()
    texts = model.texts(now.rows, now.long_words if chosen.long else now.words)
    rows: Sequence[dict[str, str]] = [
        {"text": text} if chosen.kind == "text" else model.pair(text, seed) for seed, text in enumerate(texts)
    ]
    path = place / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
