"""One training step as a module: what the trainer, and DDP, wrap."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from embrew.modeling.encoder import Encoder
from embrew.objectives import Objective


class TrainStep(nn.Module):
    """Encoder + objective: a batch in, a dict with `loss` and its parts out. All passes happen inside `forward`."""

    def __init__(self, encoder: Encoder, objective: Objective) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective

    def forward(self, **batch: Any) -> dict[str, Tensor]:
        """Move the batch to the encoder's device and compute the loss."""
        device = self.encoder.device
        return self.objective(self.encoder, {name: part.to(device) for name, part in batch.items()})

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute activations in the backward pass; the options are those of the language model's own method."""
        self.encoder.backbone.causal_lm.activation_checkpointing_enable(**options)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """The same under its name in older transformers."""
        self.encoder.backbone.causal_lm.gradient_checkpointing_enable(**options)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}
