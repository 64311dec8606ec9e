"""Pooling: from the hidden states of tokens to one vector per text, through a trained head if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from embrew.float32 import full_float32
from embrew.settings.encoder import MODES, Dense, Pooling
from embrew.text.tokens import Segment, Tokens, select_masked, upload

EXPANSION = 4  # of the feed-forward part


class LatentAttention(nn.Module):
    """The latent attention layer of *NV-Embed* (arXiv 2405.17428), section 3.1, as its released module has it.

    With token states h and latents L: u = h + Attention(LN(h), LN(L)), then u + FF(LN(u)), FF = Linear, GEGLU, Linear,
    where only FF has biases. Keys and values depend on the latents alone, so they are projected once per call, not
    once per text.

    Args:
        width: width of a token state.
        latents: number of latent vectors (the paper: 512).
        heads: number of attention heads.
        head_width: width of a head; None: `width`, as in the released module.
        seed: random seed of the initial values.
    """

    def __init__(
        self, width: int, *, latents: int = 512, heads: int = 8, head_width: int | None = None, seed: int = 42
    ) -> None:
        super().__init__()
        attention_width = heads * (head_width or width)
        self.heads = heads
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone: those of GPUs would not be restored
            self.latents = nn.Parameter(torch.randn(latents, width))
            self.norm_states, self.norm_latents, self.norm_inner = (nn.LayerNorm(width) for _ in range(3))
            self.query = nn.Linear(width, attention_width, bias=False)
            self.key_value = nn.Linear(width, 2 * attention_width, bias=False)
            self.out = nn.Linear(attention_width, width, bias=False)
            self.up = nn.Linear(width, 2 * EXPANSION * width)
            self.down = nn.Linear(EXPANSION * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Map hidden states `(batch, tokens, width)` to new ones of the same shape."""
        batch, tokens, _ = states.shape
        states = states.to(self.out.weight.dtype)
        query = self.query(self.norm_states(states)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        keys_values = self.key_value(self.norm_latents(self.latents)).view(len(self.latents), 2, self.heads, -1)
        keys, values = keys_values.permute(1, 2, 0, 3)
        shape = (batch, *keys.shape)
        attended = nn.functional.scaled_dot_product_attention(query, keys.expand(shape), values.expand(shape))
        states = states + self.out(attended.transpose(1, 2).reshape(batch, tokens, -1))
        value, gate = self.up(self.norm_inner(states)).chunk(2, dim=-1)
        return states + self.down(value * nn.functional.gelu(gate))


class Projection(nn.Module):
    """A linear layer without bias, applied to hidden states; after pooling, which is linear, it would give the same.

    It is initialised with orthonormal columns, or rows if these are fewer; where it widens, cosines do not change.

    Args:
        width: width of a token state.
        dimensions: dimensions of the output.
        seed: random seed of the initial values.
    """

    def __init__(self, width: int, dimensions: int, *, seed: int = 42) -> None:
        super().__init__()
        self.weight = nn.Parameter(orthogonal(dimensions, width, seed=seed))

    def forward(self, states: Tensor) -> Tensor:
        """Return states `(…, width)` as `(…, dimensions)`, in the layer's dtype."""
        with full_float32(states.device.type):
            return nn.functional.linear(states.to(self.weight.dtype), self.weight)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
}


class DenseLayers(nn.Module):
    """Linear layers with activations, applied to the pooled vector in float32, as Sentence-Transformers' `Dense`.

    Args:
        width: width of a pooled vector.
        layers: settings of each layer.
    """

    def __init__(self, width: int, layers: Sequence[Dense]) -> None:
        super().__init__()
        widths = [width, *(layer.dimensions for layer in layers)]
        pairs = zip(widths, widths[1:], layers, strict=False)
        self.linear = nn.ModuleList(
            nn.Linear(in_features, out_features, bias=layer.bias) for in_features, out_features, layer in pairs
        )
        self.activations = [ACTIVATIONS[layer.activation]() for layer in layers]

    @property
    def layers(self) -> list[tuple[nn.Linear, nn.Module]]:
        """The linear layers and their activations, in order."""
        return list(zip(cast("list[nn.Linear]", list(self.linear)), self.activations, strict=True))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors `(…, width)` as `(…, dimensions)` of the last layer."""
        with full_float32(vectors.device.type):
            for linear, activation in self.layers:
                vectors = activation(linear(vectors.to(linear.weight.dtype)))
        return vectors


class Center(nn.Module):
    """Subtracts a mean and principal components: `(I − VᵀV)(v − μ)`, a linear layer that is fitted, not trained.

    With components: "All-but-the-Top: Simple and Effective Postprocessing for Word Representations" (arXiv 1702.01417).
    Without: centring alone, the first step of "Whitening Sentence Representations for Better Semantics and Faster
    Retrieval" (arXiv 2103.15316), which also scales the components.

    Args:
        width: width of a pooled vector.
        components: number of components.
    """

    mean: Tensor
    components: Tensor

    def __init__(self, width: int, components: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("components", torch.zeros(components, width))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors `(…, width)` without mean and components, float32."""
        with full_float32(vectors.device.type):
            vectors = vectors.float() - self.mean
            return vectors - (vectors @ self.components.T) @ self.components

    def as_linear(self) -> tuple[Tensor, Tensor]:
        """Return weight `(width, width)` and bias `(width,)`, float32, of the same layer as `W v + b`."""
        components = self.components.double()
        weight = torch.eye(len(self.mean), dtype=torch.float64, device=self.mean.device) - components.T @ components
        return weight.float(), (-weight @ self.mean.double()).float()


def orthogonal(rows: int, columns: int, *, seed: int) -> Tensor:
    """Return a float32 matrix whose columns, or rows if these are fewer, are orthonormal."""
    return nn.init.orthogonal_(torch.empty(rows, columns), generator=torch.Generator().manual_seed(seed))


SEGMENTS = {"text": Segment.TEXT, "echo": Segment.ECHO, "memory": Segment.MEMORY}


def new_head(pooling: Pooling, width: int) -> LatentAttention | Projection | DenseLayers | None:
    """Return a newly initialised head for hidden states of a width; None if the pooling has no trained layer."""
    if pooling.dense is not None:
        return DenseLayers(width, pooling.dense)
    if pooling.projection is not None:
        return Projection(width, pooling.projection)
    if pooling.latents is None:
        return None
    return LatentAttention(width, latents=pooling.latents, heads=pooling.heads or 8, head_width=pooling.head_width)


def pooled_positions(pooling: Pooling, tokens: Tokens) -> Tensor:
    """Return `(batch, tokens)` bool: the positions that are pooled; with `last`, the last of these is."""
    if pooling.over == "all":
        return tokens.attention_mask.bool()
    mask = tokens.where(SEGMENTS[pooling.over])
    if pooling.slots is not None:
        memory_index = mask.long().cumsum(-1) - 1
        mask = mask & (memory_index[..., None] == torch.tensor(pooling.slots, device=memory_index.device)).any(-1)
    return mask


def pooling_weights(pooling: Pooling, tokens: Tokens) -> Tensor:
    """Return `(batch, tokens)` float32 weights that sum to 1 per row (0 where nothing is pooled)."""
    mask = pooled_positions(pooling, tokens)
    weights: Tensor = MODES[pooling.mode].weights(mask, mask.long().cumsum(-1)).float()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1.0)


def embed(
    head: nn.Module | None, pooling: Pooling, states: Tensor, tokens: Tokens, prefix_states: Tensor | None = None
) -> Tensor:
    """Pool `states` as `pool` does, through the head if there is one: before pooling, or after it (`DenseLayers`)."""
    if isinstance(head, DenseLayers):
        vectors: Tensor = head(pool(pooling, states, tokens, prefix_states)).float()
        return vectors
    if head is not None:
        states, prefix_states = head(states), None if prefix_states is None else head(prefix_states)
    return pool(pooling, states, tokens, prefix_states)


def pool(pooling: Pooling, states: Tensor, tokens: Tokens, prefix_states: Tensor | None = None) -> Tensor:
    """Pool `states` `(batch, tokens, hidden)` to float32 `(batch, dimensions)`.

    `prefix_states` `(1, prefix, hidden)` are the states of a prefix that all rows share; `states` are those after it.
    """
    with full_float32(states.device.type):
        prefix_length = 0 if prefix_states is None else prefix_states.shape[1]
        if pooling.mode == "concat":
            return (
                select_masked(states, pooled_positions(pooling, tokens.host)[:, prefix_length:])
                .float()
                .reshape(len(states), -1)
            )
        weights = upload(pooling_weights(pooling, tokens.host), states.device)
        if prefix_states is None:
            return torch.einsum("bt,bth->bh", weights, states.float())
        pooled = torch.einsum("bt,bth->bh", weights[:, prefix_length:], states.float())
        return pooled if pooling.mode == "last" else pooled + weights[:, :prefix_length] @ prefix_states[0].float()
