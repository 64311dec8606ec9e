"""Espresso Sentence Embeddings: embeddings that can be truncated to fewer layers and fewer dimensions."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from embrew.distributed import gather, share_of_rows, world_size
from embrew.encoder import Encoder
from embrew.losses.espresso import SVD, Compression, compression_loss, compression_target, layer_weights
from embrew.methods.angle import Angle
from embrew.methods.base import Batch, Count, NotNegative, Temperature
from embrew.methods.embedding import EmbeddingObjective, Inputs, Nested
from embrew.text.tokens import Tokens, upload

logger = logging.getLogger(__name__)


class _Terms(NamedTuple):
    """The terms of the sum, in the paper, in its code and here.

    Attributes:
        mean: divide the sum over shallow layers by their number.
        full_width: the last layer also has the base loss on all dimensions.
        offset: "layer 1" is the embedding layer, as in the public code, and states lack the final norm.
    """

    mean: bool
    full_width: bool
    offset: bool


PRESETS = {
    "default": _Terms(mean=True, full_width=True, offset=False),
    "paper": _Terms(mean=False, full_width=False, offset=False),
    "official": _Terms(mean=True, full_width=True, offset=True),
}


def official_layers(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return states `(layers, rows, hidden)`, embedding layer first, second to last left out, without final norm."""
    states = [encoder.pool(layer, tokens) for layer in encoder.backbone.raw_states(tokens, encoder.attention)]
    return torch.stack([*states[:-2], states[-1]])


@dataclass(kw_only=True)
class Espresso(Nested):
    """*ESE: Espresso Sentence Embeddings* (arXiv 2402.14776): learn to express, and to compress.

    With X_i the embeddings of the model truncated to i layers and w_i = 1 / (1 + ln i) for i < n:

    * to express (Eq. 2): Σ_{i<n} w_i ℓ(X_i[:, :k]) + ℓ(X_n[:, :k]), ℓ the base objective's loss;
    * to compress (Eqs. 3–6): the target of the first k dimensions is X_i U_kΣ_k, where UΣVᵀ is the singular value
      decomposition of softmax(X_iᵀX_i / √d) over the batch, with the same weights; the target has no gradient.

    Presets, since the paper and its public code differ: `paper` is the printed sums. `official` is the code: the sum
    over shallow layers is a mean, the last layer has ℓ on all dimensions too, and layers are counted from the
    embedding layer, so that the last but one is never trained; hidden states lack the final norm. `default` is the
    code without that error: layer i is the model truncated to i layers, final norm included.

    Attributes:
        base: ℓ; by default AnglE's composite loss on pairs with hard negatives, with the authors' weights.
        compression_size: k; must be even if ℓ compares angles.
        preset: `default`, `paper` or `official`.
        express_weight: α.
        compress_weight: β.
        layers: weights of shallow layers: `log`; `none`: 1 each; `learned`: (n − 1) · softmax(θ), initialised as `log`.
        compression: `dependencies`, or the paper's ablations `direct` (principal components of the embeddings), `max_k`
            (the largest dependencies of each dimension), `none`.
        per_text: one dependency matrix per text, as Eq. 3 is printed.
        svd: `auto` or `exact`.
        align_norm: `l2`: normalise leading dimensions and target to unit length first.
        temperature: t of the KL term.
    """

    base: EmbeddingObjective = field(
        default_factory=lambda: Angle(rows="pairs", cosine_weight=0.0, in_batch_weight=10.0)
    )
    compression_size: Count = 128
    preset: Literal["default", "paper", "official"] = "default"
    express_weight: NotNegative = 1.0
    compress_weight: NotNegative = 1.0
    layers: Literal["log", "none", "learned"] = "log"
    compression: Literal["dependencies", "direct", "max_k", "none"] = "dependencies"
    per_text: bool = False
    svd: SVD = "auto"
    align_norm: Literal["none", "l2"] = "none"
    temperature: Temperature = 1.0

    def check_settings(self) -> None:
        """Raise where k, weights and ablations do not go together."""
        self.check_layers()
        k = self.compression_size
        if k % 2 and isinstance(self.base, Angle) and self.base.angle_weight:
            raise ValueError(
                f"compression_size={k}, and AnglE's loss takes halves of a vector for real and imaginary parts; give "
                f"an even number, such as {k + 1}"
            )
        if not self.express_weight + self.compress_weight:
            raise ValueError("express_weight=0 and compress_weight=0 train nothing; give one of them a weight")
        if self.per_text and self.compression != "dependencies":
            raise ValueError(f"per_text goes with compression: dependencies, not {self.compression}")

    def setup(self, encoder: Encoder) -> None:
        """Check k and the number of layers; log which terms are summed."""
        width, depth, k = encoder.pooled_dimensions, encoder.backbone.num_layers, self.compression_size
        if not 1 <= k <= width:
            raise ValueError(f"compression_size={k} of {width} dimensions; give 1 to {width}")
        if depth < 2:
            raise ValueError(f"the model has {depth} layer; ESE trains shallow layers and the last")
        terms = PRESETS[self.preset]
        logger.info(
            "espresso, preset %s: shallow layers %s, last layer on %s, %s",
            self.preset,
            "averaged" if terms.mean else "summed",
            f"all dimensions and the first {k}" if terms.full_width else f"the first {k} dimensions",
            "layers counted from the embedding layer" if terms.offset else "layer i is the model truncated to i layers",
        )
        super().setup(encoder)

    def learned(self, encoder: Encoder) -> dict[str, nn.Parameter]:
        """Return θ of learned weights, initialised as the logarithm of the fixed ones."""
        if self.layers != "learned":
            return {}
        return {"layer_weights": nn.Parameter(layer_weights(encoder.backbone.num_layers)[:-1].log())}

    @property
    def inputs(self) -> Inputs:
        """The base objective's texts, embedded at every layer."""
        return replace(
            self.base.inputs, embed=official_layers if PRESETS[self.preset].offset else Encoder.layer_embeddings
        )

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return α · express + β · compress, and the two terms."""
        terms, k = PRESETS[self.preset], self.compression_size
        count = len(next(iter(embeddings.values())))
        weights = upload(self._weights(count, batch), next(iter(embeddings.values())).device)
        shallow = 1.0 / (count - 1) if terms.mean else 1.0
        scale = torch.cat([weights[:-1] * shallow, weights[-1:]])
        losses = []
        for i in range(count):
            leading = {role: vectors[i, :, :k] for role, vectors in embeddings.items()}
            losses.append(self.base.loss(leading, batch)["loss"])
        express = (scale * torch.stack(losses)).sum()
        if terms.full_width:
            last = {role: vectors[-1] for role, vectors in embeddings.items()}
            express = express + self.base.loss(last, batch)["loss"]
        parts = {"express": express.detach()}
        total = self.express_weight * express
        if self.compression != "none" and self.compress_weight:
            compress = (scale * self._alignments(torch.cat(list(embeddings.values()), dim=1), self.compression)).sum()
            parts["compress"] = compress.detach()
            total = total + self.compress_weight * compress
        return {"loss": total, **parts}

    def _weights(self, count: int, batch: Batch) -> Tensor:
        if self.layers == "none":
            return torch.ones(count)
        if self.layers == "log":
            return layer_weights(count)
        theta: Tensor = batch["learned"]["layer_weights"]
        return torch.cat([(count - 1) * theta.softmax(0), torch.ones(1, device=theta.device)])

    def _alignments(self, vectors: Tensor, compression: Compression) -> Tensor:
        """Return the compression loss of each layer of X `(layers, texts, d)`; all processes share the target."""
        leading = vectors[..., : self.compression_size]
        source = vectors.detach()
        if world_size() > 1:
            source = gather(source.transpose(0, 1).contiguous()).transpose(0, 1)
        target = compression_target(
            vectors,
            self.compression_size,
            compression=compression,
            per_text=self.per_text,
            svd=self.svd,
            source=None if self.per_text else source,
        )
        if self.align_norm == "l2":
            leading, target = (nn.functional.normalize(side.float(), dim=-1) for side in (leading, target))
        share = share_of_rows(vectors.shape[1], vectors.device)
        return share * compression_loss(leading, target, temperature=self.temperature)
