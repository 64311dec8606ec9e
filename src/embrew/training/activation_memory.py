"""Decide by memory whether a stage recomputes activations in its backward passes (`activation_checkpointing: auto`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainingArguments

from embrew.distributed import decided, world_size
from embrew.files.reading import read_json
from embrew.files.writing import write_json
from embrew.free_memory import total_and_free
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.layers import layers_of
from embrew.objectives import Objective
from embrew.training.gradcache import Chunks
from embrew.training.step import TrainStep

logger = logging.getLogger(__name__)
FILE = "activation_checkpointing.json"
SAMPLE, PROBED = 256, 2  # rows whose lengths are compared; rows, the longest of them, of the smaller of two batches
MARGIN = 1.25  # activations that exist and are not kept: outputs of kernels, blocks of logits, fragments
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
    encoder: Encoder, objective: Objective, rows: Dataset, args: TrainingArguments, chunks: Chunks | None, work: Path
) -> Decision:
    """Return whether a stage recomputes activations: whether those of its largest batch exceed the free memory.

    Recomputation changes no result, to the bit, so that the decision may depend on the machine; a resumed stage keeps
    the first one, which is written to the stage's work folder. All processes must call. Random states are restored.
    """
    path = work / FILE
    kept = decided(lambda: read_json(path, keys=("recompute",)) if path.is_file() else None)
    if kept is not None:
        return Decision(**kept)
    estimated = estimate(encoder, objective, rows, args, chunks)
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
    encoder: Encoder, objective: Objective, rows: Dataset, args: TrainingArguments, chunks: Chunks | None
) -> int:
    """Return bytes of activations of a stage's largest batch: measured on a few of its longest rows, per token.

    Two small batches tell what grows with the tokens from what does not (weights rounded by autocast). All rows of a
    batch are taken to be as long as the longest of a sample. With gradient caching, one chunk is kept at a time.
    """
    longest = _longest(rows, PROBED)
    dtype = torch.float16 if args.fp16 else torch.bfloat16
    used = []
    with _unchanged(encoder), torch.autocast(encoder.device.type, dtype, enabled=args.bf16 or args.fp16):
        step = TrainStep(encoder, objective)
        for batch in (longest, 2 * longest):
            used.append(_measured(step, objective.collate(batch, encoder, seed=args.seed)))
    (few, fewer_tokens, _), (more, tokens, width) = used
    per_token = (more - few) / (tokens - fewer_tokens) if tokens > fewer_tokens else more / max(tokens, 1)
    fixed = max(0.0, more - per_token * tokens)
    most = tokens / (2 * len(longest)) * args.per_device_train_batch_size
    if chunks is not None:
        chunk = chunks.tokens if chunks.rows is None else chunks.rows * width
        most = min(most, max(chunk or 0, width))
    return int(MARGIN * (fixed + per_token * most))


def _longest(rows: Dataset, count: int) -> list[dict[str, Any]]:
    """Return the rows with the longest texts of an evenly spaced sample."""
    sample = rows.select(range(0, len(rows), -(-len(rows) // SAMPLE))).to_list()
    return sorted(sample, key=lambda row: -sum(len(str(value)) for value in row.values()))[:count]


@contextmanager
def _unchanged(encoder: Encoder) -> Iterator[None]:
    """Afterwards, random states are as before, and no weight has a gradient."""
    device = encoder.device
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
            yield
    finally:
        encoder.zero_grad(set_to_none=True)


def _measured(step: TrainStep, batch: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the most bytes that are kept for the backward pass at one time, padded tokens, and the longest row."""
    kept = _Kept(step)
    seen: list[torch.Size] = []

    def count(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            seen.append((args[0] if args else named["hidden_states"]).shape)

    first = layers_of(step.encoder.backbone.inner)[0]
    hook = first.register_forward_pre_hook(count, with_kwargs=True)
    try:
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, _Packed.unpack):
            step(**batch, progress=torch.tensor(0.0))
    finally:
        hook.remove()
    return kept.most, sum(shape[0] * shape[1] for shape in seen), max((shape[1] for shape in seen), default=1)


class _Kept:
    """Bytes of the storages that are kept for backward passes, weights apart; the most at one time."""

    def __init__(self, step: TrainStep) -> None:
        held = [*step.parameters(), *step.buffers()]
        self.weights = {tensor.untyped_storage().data_ptr() for tensor in held}
        self.uses: dict[int, int] = {}
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> _Packed:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self.weights:
            return _Packed(tensor, None)
        place = storage.data_ptr()
        self.uses[place] = self.uses.get(place, 0) + 1
        if self.uses[place] == 1:
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
        return _Packed(tensor, self)

    def freed(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.uses[storage.data_ptr()] -= 1
        if not self.uses[storage.data_ptr()]:
            self.now -= storage.nbytes()


class _Packed:
    """A tensor that is kept; says when it is freed."""

    def __init__(self, tensor: Tensor, kept: _Kept | None) -> None:
        self.tensor, self.kept = tensor, kept

    def __del__(self) -> None:
        if self.kept is not None:
            self.kept.freed(self.tensor)

    def unpack(self) -> Tensor:
        return self.tensor
