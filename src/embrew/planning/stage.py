"""What a stage takes: memory of each device, operations, time, disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from embrew.data.mixing import MixedOrder
from embrew.encoder import Encoder
from embrew.methods import Objective
from embrew.planning.devices import Device
from embrew.planning.shapes import Shape
from embrew.recipe import Recipe, build
from embrew.text.tokens import Segment, Tokens

UTILIZATION = 0.4  # default share of a device's peak FLOP/s that is reached
MAX_SAMPLED_ROWS = 256  # rows of a batch that are tokenised
MAX_SAMPLED_BATCHES = 8  # batches, the largest of which counts
MOMENTS = {
    "adafactor": 0.02, "sgd": 0.0, "adagrad": 4.0, "rmsprop": 4.0, "rmsprop_bnb": 4.0, "adamw_anyprecision": 4.0,
    "ademamix": 12.0, "paged_ademamix_32bit": 12.0, "ademamix_8bit": 3.06, "paged_ademamix_8bit": 3.06,
    "lion_32bit": 4.0, "paged_lion_32bit": 4.0, "lion_8bit": 1.02, "paged_lion_8bit": 1.02, "adamw_torch_4bit": 1.06,
    "adamw_torch_8bit": 2.03, "adamw_8bit": 2.03, "adamw_bnb_8bit": 2.03, "paged_adamw_8bit": 2.03,
    "rmsprop_bnb_8bit": 1.02,
}  # fmt: skip
"""Bytes of an optimiser's state per trained weight; 8 (two moments in float32) where it is not named here."""


@dataclass(frozen=True)
class Passes:
    """Tokens of a micro-batch, padding included where it is computed.

    Attributes:
        trained: number of tokens of forward passes with a gradient.
        frozen: number of tokens of forward passes without one.
        length: number of tokens of the longest row.
        mean: mean number of trained tokens of all sampled batches, relative to this one's.
    """

    trained: float
    frozen: float
    length: int
    mean: float = 1.0


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A stage on one or several devices.

    Attributes:
        name: name of the stage.
        method: type of its objective.
        parameters: number of parameters of the model.
        trained: number of them that are trained.
        rows: number of rows of a micro-batch, per device.
        chunk: rows, or tokens, of a chunk of gradient caching; None: gradients are not cached.
        in_tokens: whether a chunk is given in tokens.
        recompute: whether activation checkpointing is on.
        sharded: whether weights, gradients and moments are sharded over all devices (FSDP2).
        bytes: memory of each device: weights, gradients, optimizer, activations, process, peak (their sum), device (all
            it has); disk: two checkpoints of the stage and its folder, trained weights, and moments in checkpoints; and
            the trained weights of each step of `training.keep`, twice until the stage is finished.
        most: largest micro-batch, or chunk, that fits, in the same unit; 0: none.
        tokens: number of tokens of an optimiser step, all devices together.
        measured: whether lengths are those of the stage's data; else, all texts are as long as the limits allow.
        flop: floating-point operations of an optimiser step, all devices together.
        seconds: duration of an optimiser step.
        steps: number of optimiser steps; None: unknown.
        hours: duration of the whole stage; None: unknown.
        fits: whether the peak of a step is within a device's memory.
        changes: overrides to give where the stage does not fit, those that change no result first.
    """

    name: str
    method: str
    parameters: int
    trained: int
    rows: int
    chunk: int | None
    in_tokens: bool
    recompute: bool
    sharded: bool
    bytes: dict[str, int]
    most: int
    tokens: int
    measured: bool
    flop: float
    seconds: float
    steps: int | None
    hours: float | None
    fits: bool
    changes: list[str]


def plan_stage(
    recipe: Recipe, index: int, shape: Shape, passes: Passes, device: Device, *, count: int | None, processes: int,
    measured: bool, order: MixedOrder | None = None, utilization: float = UTILIZATION, sharded: bool | None = None,
    loaded: bool = False,
) -> StagePlan:  # fmt: skip
    """Return the plan of stage `index` on `processes` devices; errors as `rows_of`, or the rows do not fill a batch.

    Args:
        count: number of rows of the stage; None: unknown.
        measured: whether `passes` are of the stage's data.
        order: order of the rows of several data sets, of which an epoch may leave some out.
        utilization: share of a device's peak FLOP/s that training reaches.
        sharded: FSDP2; None: where whole weights do not fit several devices.
        loaded: whether this process holds the weights already.
    """
    stage = recipe.stages[index]
    training, batch, rows = stage.training, stage.batch, rows_of(recipe, index, processes)
    chunk = None if batch is None else batch.mini_batch_size or batch.mini_batch_num_tokens
    in_tokens = batch is not None and batch.mini_batch_num_tokens is not None
    arithmetic = build.compute_dtype(recipe, stage, torch.device(device.kind))
    recompute = bool(training.get("activation_checkpointing") or training.get("gradient_checkpointing"))
    moments = MOMENTS.get(str(training.get("optim", "adamw_torch")), 8.0)
    chunk_tokens = math.inf if chunk is None else max(chunk, passes.length) if in_tokens else chunk * passes.length
    saved = int(min(passes.trained, chunk_tokens) * shape.saved(arithmetic, device.kind, recompute=recompute))
    overhead = device.overhead(arithmetic, shape.weights if loaded else 0)
    cast = 2 * shape.trained if shape.trains_all and arithmetic != "float32" else 0  # autocast's copies of weights
    unsharded = _memory(shape, moments, saved + cast, overhead, share=1, copies=min(processes, 2))
    if sharded is None:
        sharded = processes > 1 and recipe.encoder.quantization is None and unsharded["peak"] > device.memory
    layers = 3 * shape.layer  # FSDP2 gathers two layers at a time, and one has whole gradients
    sizes = _memory(shape, moments, saved + layers, overhead, share=processes, copies=1) if sharded else unsharded
    largest = max(0, int((chunk or rows) * (device.memory - sizes["peak"] + saved) / max(saved, 1)))
    accumulation = int(training.get("gradient_accumulation_steps", 1))
    factor = (2 if shape.trains_all else 1) + 1 + recompute + (chunk is not None)
    trained_flop = shape.operations(passes.trained, passes.length) * factor
    flop = accumulation * passes.mean * (trained_flop + shape.operations(passes.frozen, passes.length))
    seconds = flop / (device.speed(arithmetic) * utilization)
    steps = _steps(recipe, index, rows * processes, count, order)
    disk = 2 * (4 + moments) + 4 + 8 * len(training.get("keep") or ())
    return StagePlan(
        name=stage.name,
        method=str(stage.objective["type"]),
        parameters=shape.parameters,
        trained=shape.trained,
        rows=rows,
        chunk=chunk,
        in_tokens=in_tokens,
        recompute=recompute,
        sharded=sharded,
        bytes={**sizes, "device": device.memory, "disk": int(disk * shape.trained)},
        most=largest,
        tokens=int(passes.trained * passes.mean * accumulation * processes),
        measured=measured,
        flop=flop * processes,
        seconds=seconds,
        steps=steps,
        hours=None if steps is None else steps * seconds / 3600,
        fits=sizes["peak"] <= device.memory,
        changes=_changes(recipe, index, shape, largest, recompute) if sizes["peak"] > device.memory else [],
    )


def _memory(shape: Shape, moments: float, activations: int, process: int, *, share: int, copies: int) -> dict[str, int]:
    """Return bytes of a device by what they are for, and their sum; several processes sum gradients in copies."""
    sizes = {
        "weights": shape.weights // share,
        "gradients": copies * 4 * shape.trained // share,
        "optimizer": int(moments * shape.trained) // share,
        "activations": activations,
        "process": process,
    }
    return {**sizes, "peak": sum(sizes.values())}


def rows_of(recipe: Recipe, index: int, processes: int) -> int:
    """Return the rows of a micro-batch of stage `index`, per device.

    Raises:
        ValueError: the number of devices does not divide the global batch.
    """
    stage = recipe.stages[index]
    if stage.batch is None:
        return int(stage.training.get("per_device_train_batch_size", 8))
    if stage.batch.size % processes:
        raise ValueError(
            f"stage {stage.name}: batch.size={stage.batch.size} is not divisible by {processes} devices; give "
            "--gpus a divisor of it"
        )
    return stage.batch.size // processes


def passes_of(objective: Objective, encoder: Encoder, rows: Sequence[dict[str, Any]], size: int, seed: int) -> Passes:
    """Return the tokens of the largest of some micro-batches of a stage.

    Args:
        objective: objective of the stage.
        encoder: encoder with the templates and tokenizer of the batch; its weights are not read.
        rows: rows of the stage, in the order in which they are drawn.
        size: number of rows of a micro-batch.
        seed: seed of the recipe.
    """
    sampled = min(size, MAX_SAMPLED_ROWS, len(rows))
    starts = range(0, max(1, min(len(rows), MAX_SAMPLED_BATCHES * sampled) - sampled + 1), sampled)
    batches = [_passes(objective, encoder, rows[start : start + sampled], seed) for start in starts]
    largest = max(batches, key=lambda batch: batch.trained)
    mean = sum(batch.trained for batch in batches) / len(batches) / max(largest.trained, 1)
    length = max(batch.length for batch in batches)
    return Passes(largest.trained * size / sampled, largest.frozen * size / sampled, length, mean)


def _passes(objective: Objective, encoder: Encoder, rows: Sequence[dict[str, Any]], seed: int) -> Passes:
    """Return the tokens of one batch; rows of similar length are computed together, so padding is left out."""
    batch = objective.collate(list(rows), encoder, seed=seed)
    trained, frozen = objective.passes(encoder, batch)
    counts = [sum(map(_count_tokens, side)) for side in (trained, frozen)]
    return Passes(trained=counts[0], frozen=counts[1], length=max(tokens.input_ids.shape[1] for tokens in trained))


def _count_tokens(tokens: Tokens) -> int:
    return int((tokens.segment_ids != Segment.PAD).sum())


def _changes(recipe: Recipe, index: int, shape: Shape, largest: int, recompute: bool) -> list[str]:
    stage = recipe.stages[index]
    where, batch = f"stages.{stage.name}", stage.batch
    settings = [] if recompute else [f"{where}.training.activation_checkpointing=true"]
    if largest and batch is not None and batch.mini_batch_num_tokens:
        settings.append(f"{where}.batch.mini_batch_num_tokens={largest}")
    elif largest and batch is not None:
        settings.append(f"{where}.batch.mini_batch_size={largest} (gradient caching: the same loss, one more pass)")
    elif largest:
        settings.append(f"{where}.training.per_device_train_batch_size={largest} (with gradient_accumulation_steps)")
    if shape.trains_all:
        settings.append("'encoder.lora={r: 16}' (train a LoRA in place of every weight; other results)")
    elif recipe.encoder.quantization is None:
        settings.append("encoder.quantization=nf4 (4-bit base; other results)")
    return [*settings, "more GPUs, with sharded weights (FSDP2: launch/fsdp2)"]


def _steps(recipe: Recipe, index: int, batch: int, count: int | None, order: MixedOrder | None) -> int | None:
    """Return the optimiser steps of a stage, as transformers' Trainer counts them; None: unknown."""
    stage = recipe.stages[index]
    training = stage.training
    drops_last = build.drops_last(stage, build.objective(stage.objective))
    if drops_last and count is not None:
        build.check_fills_batch(stage, count, batch)
    steps = int(training.get("max_steps", -1))
    if steps > 0 or count is None:
        return steps if steps > 0 else None
    drawn = count if order is None else len(order)
    batches = drawn // batch if drops_last else math.ceil(drawn / batch)
    steps_per_epoch = max(1, math.ceil(batches / int(training.get("gradient_accumulation_steps", 1))))
    return math.ceil(float(training.get("num_train_epochs", 3.0)) * steps_per_epoch)
