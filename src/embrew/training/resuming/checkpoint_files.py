"""The files of a checkpoint: trained tensors, and optimiser and schedule of sharded training."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainingArguments

from embrew.files.writing import atomic_path
from embrew.storage.parts import read_tensors
from embrew.training import sharding
from embrew.training.step import TrainStep

WEIGHTS, BEST = "trainable.safetensors", "best.safetensors"
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"  # the Trainer's own names


def files_needed(args: TrainingArguments) -> tuple[str, ...]:
    """Return the files, as patterns, that a checkpoint needs to be resumed to the same result."""
    found: tuple[str, ...] = (WEIGHTS, "trainer_state.json")
    if not args.save_only_model:
        found += ("rng_state*.pth",)
        if args.deepspeed_plugin is None:  # it saves optimiser and schedule in separate folders
            found += (OPTIMIZER, SCHEDULER)
    return found


def trained_tensors(step: TrainStep) -> dict[str, Tensor]:
    """Return the trained tensors, gathered, on the CPU; all processes must call."""
    return {name: sharding.whole(parameter) for name, parameter in step.trainable().items()}


def put_trained(step: TrainStep, tensors: Mapping[str, Tensor]) -> None:
    """Write gathered tensors into a step's parameters; all processes that share the parameters must call."""
    for name, parameter in step.trainable().items():
        sharding.put(parameter, tensors[name])


def write_trained(step: TrainStep, path: Path, *, writes: bool) -> None:
    """Write the trained tensors; if weights are sharded, all processes must call; the one with `writes` writes."""
    tensors = trained_tensors(step)
    if writes:
        with atomic_path(path) as temporary:
            save_file(tensors, temporary)


def read_trained(step: TrainStep, path: Path) -> None:
    """Read a file of trained tensors into the model.

    Raises:
        ValueError: the file holds other parameters.
    """
    tensors, parameters = read_tensors(path), step.trainable()
    if tensors.keys() != parameters.keys():
        odd = sorted(tensors.keys() ^ parameters.keys())
        raise ValueError(f"{path} holds other parameters than this stage trains: {', '.join(odd[:3])}")
    put_trained(step, tensors)


def write_sharded_optimizer(folder: Path, optimizer: torch.optim.Optimizer, scheduler: Any, *, writes: bool) -> None:
    """Write optimiser and schedule as one process would, so that any number of processes can resume; all must call."""
    state = sharding.whole_state(optimizer.state_dict())
    if writes:
        torch.save(state, folder / OPTIMIZER)
        torch.save(scheduler.state_dict(), folder / SCHEDULER)


def read_sharded_optimizer(folder: Path, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Read what `write_sharded_optimizer` wrote; all processes must call."""
    state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
    optimizer.load_state_dict(sharding.sharded_state(state, optimizer))
    scheduler.load_state_dict(torch.load(folder / SCHEDULER, weights_only=True))


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file that is not written to again; copy it where the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
