"""Decide by memory whether a stage recomputes activations in its backward passes (`activation_checkpointing: auto`)."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainingArguments

from embrew.data.mixing import MixedOrder
from embrew.distributed import decided, world_size
from embrew.files.reading import read_json
from embrew.files.writing import write_json
from embrew.free_memory import total_and_free
from embrew.modeling.encoder import Encoder
from embrew.objectives import Objective
from embrew.training.gradcache import Chunks
from embrew.training.largest_batch import largest_batch
from embrew.training.step_cost import How, step_cost

logger = logging.getLogger(__name__)
FILE = "activation_checkpointing.json"
MARGIN = 1.1  # for batches that are larger than those that are compared, and kernels' own memory
OPTIMIZER = 16  # bytes per trained weight: its gradient, two moments, and the largest copy among the steps of an update


@dataclass(frozen=True)
class Decision:
    """Whether activations are recomputed, and why.

    Attributes:
        recompute: whether they are.
        estimated_bytes: of activations that the backward pass of the largest batch needs.
        free_bytes: of memory, less what gradients and the optimiser need; None: unknown.
    """

    recompute: bool
    estimated_bytes: int
    free_bytes: int | None


def decide(
    encoder: Encoder,
    objective: Objective,
    rows: Dataset,
    args: TrainingArguments,
    chunks: Chunks | None,
    work: Path,
    order: MixedOrder | None = None,
) -> Decision:
    """Return whether a stage recomputes activations: whether those of its largest batch exceed the free memory.

    Recomputation changes no result, to the bit, so that the decision may depend on the machine; a resumed stage keeps
    the first one, which is written to the stage's work folder. All processes must call. Random states are restored.
    """
    path = work / FILE
    kept = decided(lambda: read_json(path, keys=("recompute",)) if path.is_file() else None)
    if kept is not None:
        return Decision(**kept)
    estimated = estimate(encoder, objective, rows, args, chunks, order)
    trained = sum(parameter.numel() for parameter in encoder.parameters() if parameter.requires_grad)

    def choose() -> Decision:
        free = free_bytes(encoder.device)
        left = None if free is None else max(0, free - OPTIMIZER * trained)
        chosen = Decision(left is not None and estimated > left, estimated, left)
        write_json(path, asdict(chosen))
        return chosen

    return decided(choose)


def log(name: str, decision: Decision) -> None:
    """Log a decision, with its two figures."""
    free = "unknown" if decision.free_bytes is None else f"{decision.free_bytes / 1e9:.2f} GB"
    logger.info(
        "%s  activation checkpointing %s: activations need about %.2f GB, free is %s",
        name,
        "on" if decision.recompute else "off",
        decision.estimated_bytes / 1e9,
        free,
    )


def free_bytes(device: torch.device) -> int | None:
    """Return bytes of memory that this process may still use on a device; None: unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    free = total_and_free()[1]
    return None if free is None else free // world_size()


def estimate(
    encoder: Encoder,
    objective: Objective,
    rows: Dataset,
    args: TrainingArguments,
    chunks: Chunks | None,
    order: MixedOrder | None = None,
) -> int:
    """Return bytes of activations of a stage's largest batch, counted on a copy of the encoder without values.

    With gradient caching, one chunk is kept at a time.
    """
    longest = max(encoder.max_length.values())
    size = args.per_device_train_batch_size
    batch = largest_batch(rows, size, max_length=longest, order=order, seed=args.seed).rows
    autocast = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    how = How(kind=encoder.device.type, autocast=autocast, chunks=chunks)
    cost = step_cost(encoder, objective, objective.collate(batch, encoder, seed=args.seed), how)
    return int(MARGIN * cost.activations)
