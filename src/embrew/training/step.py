"""One training step as a module, which the trainer and DDP wrap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from embrew.encoder import Encoder
from embrew.methods import EmbeddingObjective, Objective
from embrew.methods.base import UNIT_WEIGHTS
from embrew.model.weights import check_float32
from embrew.text.tokens import upload
from embrew.training.gradcache import Chunks, cached_loss
from embrew.training.sharding import is_sharded, shard_whole


class Learned(nn.Module):
    """Parameters that an objective needs in training only."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)

    def forward(self) -> dict[str, Tensor]:
        """Return copies by name, through which gradients reach the parameters."""
        return {name: parameter.clone() for name, parameter in self.named_parameters()}


class TrainStep(nn.Module):
    """Encoder and objective: takes a batch, returns a dict with `loss` and its parts.

    All forward passes happen inside `forward`; with `chunks`, the second ones of gradient caching happen in the loss'
    backward pass. Where the encoder's weights are sharded, every process runs the same number of forward passes.

    Attributes:
        learned: parameters that the objective needs in training only.
        accepts_loss_kwargs: False tells the Trainer to divide every loss by the number of micro-batches and to pass no
            count of labels; `unit_weights` holds the weight of a token.
    """

    accepts_loss_kwargs = False

    def __init__(self, encoder: Encoder, objective: Objective, chunks: Chunks | None = None) -> None:
        super().__init__()
        if chunks is not None and not isinstance(objective, EmbeddingObjective):
            raise TypeError(
                f"{type(objective).__name__} depends on more than embeddings; it cannot use gradient caching"
            )
        self.encoder = encoder
        self.objective = objective
        self.chunks = chunks
        self.learned = Learned(objective.learned(encoder))
        check_float32(self)
        self.sharded = is_sharded(encoder)
        self.learns_more = any(True for _ in self.learned.parameters())
        if self.sharded and self.learns_more:
            shard_whole(self.learned, encoder.device)

    def forward(self, *, unit_weights: Mapping[str, float] | None = None, **batch: Any) -> dict[str, Tensor]:
        """Move the batch to the encoder's device and compute the loss.

        Args:
            unit_weights: weight of the loss of a token, or row; None: the batch is the whole optimiser step.
            batch: as the objective collates it.
        """
        device = self.encoder.device
        there: dict[str, Any] = {name: moved(part, device) for name, part in batch.items()}
        if unit_weights is not None:
            there[UNIT_WEIGHTS] = unit_weights
        if self.learns_more:
            there["learned"] = self.learned()
        if isinstance(self.objective, EmbeddingObjective) and self.chunks is not None:
            return cached_loss(self.objective, self.encoder, there, self.chunks)
        return self.objective(self.encoder, there)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute activations in the backward pass; the options are those of the language model's own method."""
        self.encoder.backbone.causal_lm.activation_checkpointing_enable(**options)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def moved(part: Any, device: torch.device) -> Any:
    """Return a part of a batch on a device, without waiting for the copy; numbers and arrays stay on the CPU."""
    if isinstance(part, Tensor):
        return upload(part, device)
    return part.to(device) if hasattr(part, "to") else part
