"""Bytes of a device in training: what is always there, and the fullest moment of a step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from embrew.modeling.encoder import Encoder
from embrew.modeling.model.layers import layers_of
from embrew.objectives import Objective
from embrew.training.step_cost import FRAGMENTS, StepCost


@dataclass(frozen=True)
class Static:
    """What does not depend on a batch.

    Attributes:
        parameters: number of all parameters, those of a second copy of the LM included.
        trained: number of those that are trained.
        weights: bytes of all weights and buffers.
        layer: bytes of the largest layer in the dtype of products.
        outside: likewise, of what is in no layer.
        layers: number of layers.
    """

    parameters: int
    trained: int
    weights: int
    layer: int
    outside: int
    layers: int

    @classmethod
    def of(cls, encoder: Encoder, objective: Objective, *, spared: int = 0, itemsize: int | None = None) -> Static:
        """Count the weights of an encoder, of its second copy of the LM, and those that the objective learns.

        Args:
            encoder: prepared for a stage.
            objective: of the stage.
            spared: bytes that quantised weights take less than the encoder's.
            itemsize: bytes of a weight in products; None: its own.
        """
        learned = nn.ParameterDict(objective.learned(encoder))
        models: list[nn.Module] = [encoder, *encoder.backbone._clone, learned]
        parameters = {id(p): p for model in models for p in model.parameters()}.values()
        buffers = {id(b): b for model in models for b in model.buffers()}.values()

        def gathered(module: nn.Module) -> int:
            return sum(p.numel() * (itemsize or p.itemsize) for p in module.parameters())

        layers = [gathered(layer) for layer in layers_of(encoder.backbone.inner)]
        return cls(
            parameters=sum(p.numel() for p in parameters),
            trained=sum(p.numel() for p in parameters if p.requires_grad),
            weights=sum(t.nbytes for t in (*parameters, *buffers)) - spared,
            layer=max(layers),
            outside=gathered(encoder.backbone) - sum(layers),
            layers=len(layers),
        )


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device.

    Attributes:
        sharded: weights, gradients and moments are sharded over all devices (FSDP2).
        taken: by the process, before there is a weight.
        weights: of weights.
        gradients: of gradients, and of the copies in which data parallelism sums them.
        optimizer: of the optimiser's state.
        activations: of all else at the fullest moment of a step.
    """

    sharded: bool
    taken: int
    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def peak(self) -> int:
        """All of them."""
        return self.taken + self.weights + self.gradients + self.optimizer + self.activations

    @classmethod
    def of(
        cls,
        static: Static,
        cost: StepCost,
        *,
        taken: int,
        moments: float,
        accumulates: bool,
        processes: int,
        sharded: bool,
    ) -> Memory:
        """Return the memory of a device.

        Args:
            static: what is always there.
            cost: of a micro-batch.
            taken: bytes before there is a weight.
            moments: bytes of the optimiser's state per trained weight.
            accumulates: gradients of earlier micro-batches are there in the forward pass.
            processes: number of devices.
            sharded: FSDP2.
        """
        gradients = 4 * static.trained
        before = gradients if accumulates else 0
        step = FRAGMENTS * max(cost.forward, cost.backward) + before
        moving = max(step, gradients + cost.copies)  # the latter: at the update
        activations = moving - gradients
        share = processes if sharded else 1
        if sharded:  # two layers are gathered at a time, and one has whole gradients
            activations = cost.activations + 2 * static.layer + static.outside + gradients / static.layers
        elif processes > 1:
            gradients *= 2  # buckets of DistributedDataParallel
        return cls(
            sharded=sharded,
            taken=taken,
            weights=static.weights // share,
            gradients=gradients // share,
            optimizer=int(moments * static.trained) // share,
            activations=int(max(activations, 0)),
        )
