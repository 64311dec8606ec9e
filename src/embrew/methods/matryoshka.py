"""Matryoshka objectives: any embedding objective at several widths, and at several layers."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor, cat
from torch.nn import functional

from embrew.distributed import share_of_rows
from embrew.encoder import Encoder
from embrew.methods.base import Batch, Count, CountOrNone, NotNegative, Temperature
from embrew.methods.embedding import Inputs, Nested

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Matryoshka(Nested):
    """Σ_m c_m · base(first m dimensions), *Matryoshka Representation Learning* (arXiv 2205.13147), Eq. 1.

    Attributes:
        dims: numbers of leading dimensions; the full width is trained only if it is among them.
        weights: c_m, in the order of `dims`; None: 1 each.
    """

    dims: Annotated[list[Count], Field(min_length=1)]
    weights: Annotated[list[NotNegative], Field(min_length=1)] | None = None

    def check_settings(self) -> None:
        """Raise unless all dimensions differ and each has a weight."""
        if len(set(self.dims)) < len(self.dims):
            raise ValueError(f"dims={self.dims}; give different numbers")
        if self.weights is not None and len(self.weights) != len(self.dims):
            raise ValueError(f"weights={self.weights} for dims={self.dims}; give one weight per dimension")
        if self.weights is not None and not any(self.weights):
            raise ValueError(f"weights={self.weights} train nothing; give one above 0")

    def setup(self, encoder: Encoder) -> None:
        """Set up the base; raise if an embedding has fewer dimensions, warn if its full width is not among them."""
        width = encoder.pooled_dimensions
        if max(self.dims) > width:
            raise ValueError(f"dims={self.dims}; give different numbers from 1 to {width}")
        if width not in self.dims:
            logger.warning("dims=%s leave out all %d dimensions, which are then trained in part only", self.dims, width)
        super().setup(encoder)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the weighted sum, and the base loss at each width as `loss_m`."""
        return self.truncated(embeddings, batch, self.dims)

    def truncated(self, embeddings: dict[str, Tensor], batch: Batch, dims: Sequence[int]) -> dict[str, Tensor]:
        """Return the weighted sum of the base loss at some widths, and the loss at each width as `loss_m`."""
        parts: dict[str, Tensor] = {}
        total = next(iter(embeddings.values())).new_zeros(())
        for m in dims:
            weight = 1.0 if self.weights is None else self.weights[self.dims.index(m)]
            value = self.base.loss({role: vectors[..., :m] for role, vectors in embeddings.items()}, batch)["loss"]
            total = total + weight * value
            parts[f"loss_{m}"] = value.detach()
        return {"loss": total, **parts}


@dataclass(kw_only=True)
class Matryoshka2d(Matryoshka):
    """*2D Matryoshka Sentence Embeddings* (arXiv 2402.14776, first version): the last layer and random shallower ones.

    Each step: the Matryoshka loss of the last layer, plus the mean of that of `layers_per_step` layers drawn at random,
    plus the Kullback–Leibler divergence of each of them from the last layer's embeddings, over dimensions. "Layer i" is
    the model truncated to i layers, final norm included. Every step uses the widest of `dims`, and `dims_per_step` of
    the others. The progress of the stage is the seed of the draw, so that every process, and a resumed run, draws the
    same layers and dimensions.

    Attributes:
        layers_per_step: number of shallower layers per step.
        dims_per_step: number of the narrower dimensions per step; None: all.
        last_layer_weight: weight of the last layer's loss.
        layer_weight: weight of the shallower layers' mean loss.
        kl_weight: weight of the divergence.
        kl_temperature: both sides are divided by it, and the divergence is multiplied with it.
    """

    layers_per_step: Count = 1
    dims_per_step: CountOrNone | None = 1
    last_layer_weight: NotNegative = 1.0
    layer_weight: NotNegative = 1.0
    kl_weight: NotNegative = 1.0
    kl_temperature: Temperature = 0.3

    def check_settings(self) -> None:
        """Raise unless there are dimensions to draw from and a term has a weight."""
        self.check_layers()
        super().check_settings()
        if self.dims_per_step is not None and self.dims_per_step >= len(self.dims):
            raise ValueError(
                f"dims_per_step={self.dims_per_step}; without the widest of dims={self.dims} there are "
                f"{len(self.dims) - 1}"
            )
        if not self.last_layer_weight + self.layer_weight + self.kl_weight:
            raise ValueError("last_layer_weight, layer_weight and kl_weight are all 0; give one of them a weight")

    def setup(self, encoder: Encoder) -> None:
        """Raise unless there are `layers_per_step` layers below the last."""
        below = encoder.backbone.num_layers - 1
        if self.layers_per_step > below:
            raise ValueError(f"layers_per_step={self.layers_per_step}; there are {below} below the last: 1 to {below}")
        super().setup(encoder)

    @property
    def inputs(self) -> Inputs:
        """The base objective's texts, embedded at every layer."""
        return replace(self.base.inputs, embed=Encoder.layer_embeddings)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the weighted sum, and its parts `last`, `shallow` and `kl`."""
        layers, dims = self._draw(len(next(iter(embeddings.values()))), batch)
        at_last = {role: vectors[-1] for role, vectors in embeddings.items()}
        last = self.truncated(at_last, batch, dims)["loss"]
        teacher = functional.softmax(cat(list(at_last.values())) / self.kl_temperature, -1)
        shallow, kl = last.new_zeros(()), last.new_zeros(())
        share = self.kl_temperature * share_of_rows(len(teacher), teacher.device)
        for layer in layers:
            at_layer = {role: vectors[layer] for role, vectors in embeddings.items()}
            shallow = shallow + self.truncated(at_layer, batch, dims)["loss"] / len(layers)
            student = functional.log_softmax(cat(list(at_layer.values())) / self.kl_temperature, -1)
            kl = kl + functional.kl_div(student, teacher.detach(), reduction="sum") * (share / max(len(teacher), 1))
        loss = self.last_layer_weight * last + self.layer_weight * shallow + self.kl_weight * kl
        return {"loss": loss, "last": last.detach(), "shallow": shallow.detach(), "kl": kl.detach()}

    def _draw(self, layers: int, batch: Batch) -> tuple[list[int], list[int]]:
        """Return layers, counted from 0, and dimensions of this step."""
        generator = random.Random(f"{float(batch.get('progress', 0.0))}")
        chosen = sorted(generator.sample(range(layers - 1), self.layers_per_step))
        widest = max(self.dims)
        others = [m for m in self.dims if m != widest]
        return chosen, [
            widest,
            *generator.sample(others, len(others) if self.dims_per_step is None else self.dims_per_step),
        ]
