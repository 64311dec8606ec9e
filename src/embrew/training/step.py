"""One training step as a module: what the trainer, and DDP, wrap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from embrew.modeling.encoder import Encoder
from embrew.modeling.model.precision import check_float32
from embrew.objectives import EmbeddingObjective, Objective
from embrew.objectives.reductions import UNIT_WEIGHTS
from embrew.training.gradcache import Chunks, cached_loss, loss_alike
from embrew.training.sharding import is_sharded


class TrainStep(nn.Module):
    """Encoder + objective: a batch in, a dict with `loss` and its parts out. All passes happen inside `forward`.

    With `chunks`, the second passes of gradient caching happen in the loss' backward pass. Where the encoder's weights
    are in pieces, every process makes the same number of passes.

    Attributes:
        learned: parameters that the objective needs in training only.
        accepts_loss_kwargs: for the Trainer, which then divides every loss by the number of micro-batches and passes no
            count of labels; what a token counts is said by `unit_weights`.
    """

    accepts_loss_kwargs = False

    def __init__(self, encoder: Encoder, objective: Objective, chunks: Chunks | None = None) -> None:
        super().__init__()
        if chunks is not None and not isinstance(objective, EmbeddingObjective):
            raise TypeError(f"{type(objective).__name__} looks at more than embeddings; it has no gradient cache")
        self.encoder = encoder
        self.objective = objective
        self.chunks = chunks
        self.learned = nn.ParameterDict(objective.learned(encoder))
        check_float32(self)
        if len(self.learned) and is_sharded(encoder):
            raise TypeError(
                f"{type(objective).__name__} learns {', '.join(self.learned)} beside the encoder, which FSDP2 does not "
                "keep alike on all processes; train it with plain data parallelism (torchrun, or launch/ddp)"
            )
        self.sharded = is_sharded(encoder)
        if self.sharded and not isinstance(objective, EmbeddingObjective):
            raise TypeError(
                f"{type(objective).__name__} looks at more than embeddings; it cannot be trained under FSDP2"
            )

    def forward(self, *, unit_weights: Mapping[str, float] | None = None, **batch: Any) -> dict[str, Tensor]:
        """Move the batch to the encoder's device and compute the loss.

        Args:
            unit_weights: what the loss of a token, or row, counts; without, the batch is the whole optimiser step.
            batch: as the objective collates it.
        """
        device = self.encoder.device
        there: dict[str, Any] = {name: part.to(device) for name, part in batch.items()}
        if unit_weights is not None:
            there[UNIT_WEIGHTS] = unit_weights
        if len(self.learned):
            there["learned"] = self.learned
        if isinstance(self.objective, EmbeddingObjective):
            if self.chunks is not None:
                return cached_loss(self.objective, self.encoder, there, self.chunks, alike=self.sharded)
            if self.sharded:
                return loss_alike(self.objective, self.encoder, there)
        return self.objective(self.encoder, there)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute activations in the backward pass; the options are those of the language model's own method."""
        self.encoder.backbone.causal_lm.activation_checkpointing_enable(**options)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """The same under its name in older transformers."""
        self.encoder.backbone.causal_lm.gradient_checkpointing_enable(**options)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}
