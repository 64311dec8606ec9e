"""Memory and operations of a training step, counted on an encoder without values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from embrew.modeling.encoder import Encoder
from embrew.modeling.model.layers import layers_of, path_of_layers
from embrew.objectives import EmbeddingObjective, Objective
from embrew.shaped import Ledger, counting, shaped
from embrew.training.gradcache import Chunks, groups_of
from embrew.training.step import TrainStep

DEPTHS = 2, 3  # layers of the models that are counted; what one more takes is the difference


@dataclass(frozen=True)
class StepCost:
    """What one forward and backward pass of a training step takes, in bytes beyond the weights.

    Attributes:
        forward: largest number of bytes held at a time until the loss is there.
        saved: bytes that are kept for the backward pass.
        backward: largest number of bytes held at a time in the backward pass, gradients included.
        gradients: bytes of gradients of weights.
        copies: bytes of copies of weights that are kept for later steps.
        flop: floating-point operations.
    """

    forward: float
    saved: float
    backward: float
    gradients: float
    copies: float
    flop: float

    @property
    def peak(self) -> float:
        """Largest number of bytes held at a time."""
        return max(self.forward, self.backward)

    def at(self, other: StepCost, depth: int) -> StepCost:
        """Return the cost with `depth` layers; this is of `DEPTHS[0]`, the other of `DEPTHS[1]`."""
        steps = (depth - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return StepCost(**{name: one + steps * (two - one) for name, (one, two) in pairs.items()})


def step_cost(
    encoder: Encoder,
    objective: Objective,
    batch: Mapping[str, Any],
    *,
    kind: str,
    autocast: torch.dtype | None,
    recompute: bool = False,
    chunks: Chunks | None = None,
) -> StepCost:
    """Return the cost of a step on an encoder that `without_values` made.

    Args:
        encoder: as many layers are counted as it has.
        objective: what is trained.
        batch: as the objective collates it, on the CPU.
        kind: type of the device that is planned for.
        autocast: dtype of matrix products; None: that of the weights.
        recompute: activation checkpointing.
        chunks: of gradient caching; the largest one is counted, and operations of all.
    """
    step = TrainStep(encoder, objective)
    if recompute:
        step.activation_checkpointing_enable()
    weights = [parameter for parameter in step.parameters() if parameter.requires_grad]
    with counting(kind) as ledger, torch.random.fork_rng(devices=[]):
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            loss = step(**batch, progress=torch.tensor(0.0))["loss"]
        forward, saved = ledger.peak, ledger.now
        ledger.peak = ledger.now
        loss.backward()
        del loss
        gradients = sum(weight.grad.nbytes for weight in weights if weight.grad is not None)
        cost = StepCost(forward, saved, ledger.peak, gradients, ledger.now - gradients, ledger.flop)
    encoder.zero_grad(set_to_none=True)
    return cost


def without_values(encoder: Encoder, depth: int | None = None) -> Encoder:
    """Return a copy of an encoder whose weights have no values; with its first `depth` layers."""
    models: list[nn.Module] = [encoder, *encoder.backbone._clone]
    memo: dict[int, Any] = {id(encoder.tokenizer): encoder.tokenizer}
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            memo[id(tensor)] = shaped(tensor)
    made = copy.deepcopy(encoder, memo)
    if depth is not None:
        for inner in (made.backbone.inner, *(model.base_model for model in made.backbone._clone)):
            _cut(inner, depth)
    return made


def _cut(inner: Any, depth: int) -> None:
    holder, _, name = path_of_layers(inner).rpartition(".")
    setattr(inner.get_submodule(holder), name, nn.ModuleList(layers_of(inner)[:depth]))
    inner.config.num_hidden_layers = depth
