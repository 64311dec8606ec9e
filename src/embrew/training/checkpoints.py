"""The files of a checkpoint; a manifest with the sha256 of every file, written last, makes it complete."""

from __future__ import annotations

import fnmatch
import json
import logging
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainingArguments

from embrew.files.checksums import check_sealed_file, file_sha256
from embrew.files.names import is_safe_name
from embrew.files.reading import BrokenFile
from embrew.files.writing import flush, write_json
from embrew.storage.parts import read_tensors, write_tensors
from embrew.training.sharding import gathered, sharded_like
from embrew.training.step import TrainStep

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
WEIGHTS, BEST = "trainable.safetensors", "best.safetensors"
STEP_SUFFIX = ".step-"  # suffix, before the number, of the folder of a step of `training.keep`
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"  # the Trainer's own names
REPAIR = "give the same command with --resume: the steps from an intact checkpoint on are trained again"


def step_file(work: Path, step: int) -> Path:
    """Return the file of the trained tensors of a step of `training.keep`, in the folder of a stage in progress."""
    return work / f"step-{step}.safetensors"


def files_needed(args: TrainingArguments) -> tuple[str, ...]:
    """Return the files, as patterns, that a checkpoint needs to be resumed to the same result."""
    files = (WEIGHTS, "trainer_state.json", "rng_state*.pth")
    # DeepSpeed saves optimiser and schedule in separate folders
    return files if args.deepspeed_plugin is not None else (*files, OPTIMIZER, SCHEDULER)


def trained_tensors(step: TrainStep) -> dict[str, Tensor]:
    """Return the trained tensors, gathered, on the CPU; all processes must call."""
    return {name: gathered(parameter) for name, parameter in step.trainable().items()}


def load_trained(step: TrainStep, tensors: Mapping[str, Tensor]) -> None:
    """Write gathered tensors into a step's parameters; all processes that share the parameters must call."""
    with torch.no_grad():
        for name, parameter in step.trainable().items():
            parameter.copy_(sharded_like(tensors[name], parameter))


def write_trained(step: TrainStep, path: Path, *, writes: bool, sealed: bool = True) -> None:
    """Write the trained tensors; if weights are sharded, all processes must call; the one with `writes` writes.

    Args:
        step: training step whose tensors are written.
        path: path of the file.
        writes: whether this process writes.
        sealed: the file holds the sha256 of the rest of it; a checkpoint has a manifest instead.
    """
    tensors = trained_tensors(step)
    if writes:
        write_tensors(path, tensors, sealed=sealed)


def read_trained(step: TrainStep, path: Path, *, sealed: bool = True) -> None:
    """Read a file of trained tensors into the model; `sealed`: as it was written.

    Raises:
        BrokenFile: the file is missing, damaged, or has changed.
        ValueError: the file holds other parameters.
    """
    if not path.is_file():
        raise BrokenFile(f"{path} is missing; {REPAIR}")
    tensors, parameters = read_tensors(path, repair=REPAIR, sealed=sealed), step.trainable()
    if tensors.keys() != parameters.keys():
        differing = sorted(tensors.keys() ^ parameters.keys())
        raise ValueError(f"{path} holds other parameters than this stage trains: {', '.join(differing[:3])}")
    load_trained(step, tensors)


def write_sharded_optimizer(folder: Path, optimizer: Optimizer, scheduler: LRScheduler, *, writes: bool) -> None:
    """Write optimiser and schedule as one process would; all processes must call."""
    state = optimizer.state_dict()
    whole_state = {
        number: {key: gathered(value) if isinstance(value, Tensor) else value for key, value in moments.items()}
        for number, moments in state["state"].items()
    }
    if writes:
        torch.save({**state, "state": whole_state}, folder / OPTIMIZER)
        torch.save(scheduler.state_dict(), folder / SCHEDULER)


def read_sharded_optimizer(folder: Path, optimizer: Optimizer, scheduler: LRScheduler) -> None:
    """Read what `write_sharded_optimizer` wrote; all processes must call."""
    state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, moments in state["state"].items():
        for key, value in moments.items():
            if isinstance(value, Tensor) and value.shape == parameters[number].shape:
                moments[key] = sharded_like(value, parameters[number])
    optimizer.load_state_dict(state)
    scheduler.load_state_dict(torch.load(folder / SCHEDULER, weights_only=True))


def seal(checkpoint: Path) -> None:
    """Flush a checkpoint's files to disk and write its manifest, which makes it complete."""
    hashes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            flush(path)
            hashes[str(path.relative_to(checkpoint))] = file_sha256(path)
    write_json(checkpoint / MANIFEST, hashes)


def is_complete(checkpoint: Path, needed: Collection[str] = ()) -> bool:
    """Return whether the manifest lists all needed files, and every file in it exists with its sha256.

    Args:
        checkpoint: a folder.
        needed: file names, as patterns; each must match a file of the manifest.
    """
    try:
        hashes = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(hashes, dict) or not hashes or not all(is_safe_name(name) for name in hashes):
        return False
    if not all(fnmatch.filter(hashes, pattern) for pattern in needed):
        return False
    return all((checkpoint / name).is_file() and file_sha256(checkpoint / name) == sha for name, sha in hashes.items())


def newest(folder: Path, needed: Collection[str] = (), keep: Iterable[int] = ()) -> Path | None:
    """Return the newest complete checkpoint; log and skip others.

    Args:
        folder: folder of the stage in progress.
        needed: see `is_complete`.
        keep: the steps of `training.keep`. A checkpoint is of no use where the file of a step before it is lost.
    """
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        damaged = [
            str(file) for step in keep if step <= _step(checkpoint) and _is_damaged(file := step_file(folder, step))
        ]
        if not is_complete(checkpoint, needed):
            logger.warning("%s is incomplete (interrupted while it was written, or damaged) and is skipped", checkpoint)
        elif damaged:
            message = (
                "%s is skipped, since %s is missing or has changed since it was written; its step is trained again"
            )
            logger.warning(message, checkpoint, ", ".join(damaged))
        else:
            return checkpoint
    return None


def _is_damaged(path: Path) -> bool:
    try:
        check_sealed_file(path)
    except (OSError, ValueError):
        return True
    return False


def rotate(folder: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest `keep`; incomplete ones stay, and `newest` logs them."""
    complete = [c for c in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True) if (c / MANIFEST).is_file()]
    for checkpoint in complete[keep:]:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1
