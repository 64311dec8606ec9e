"""A trained head before the mean: every token reads a table of learned latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPANSION = 4  # of the feed-forward part


class LatentAttention(nn.Module):
    """The latent attention layer of *NV-Embed* (arXiv 2405.17428), section 3.1, as its released module has it.

    With token states h and latents L: u = h + Attention(LN(h), LN(L)), then u + FF(LN(u)), FF = Linear, GEGLU, Linear,
    all but FF without biases. Keys and values depend on the latents alone, so they are projected once per call, not
    once per text.

    Args:
        width: of a token state.
        latents: rows of the table (the paper: 512).
        heads: attention heads (8).
        head_width: width of a head; `width` without it, as released.
        seed: of the initial values.
    """

    def __init__(
        self, width: int, *, latents: int = 512, heads: int = 8, head_width: int | None = None, seed: int = 42
    ) -> None:
        super().__init__()
        inner = heads * (head_width or width)
        self.heads = heads
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.latents = nn.Parameter(torch.randn(latents, width))
            self.norm_states, self.norm_latents, self.norm_inner = (nn.LayerNorm(width) for _ in range(3))
            self.query = nn.Linear(width, inner, bias=False)
            self.key_value = nn.Linear(width, 2 * inner, bias=False)
            self.out = nn.Linear(inner, width, bias=False)
            self.up = nn.Linear(width, 2 * EXPANSION * width)
            self.down = nn.Linear(EXPANSION * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Return token states `(batch, tokens, width)` to `(batch, tokens, width)`."""
        batch, tokens, _ = states.shape
        states = states.to(self.out.weight.dtype)
        query = self.query(self.norm_states(states)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        pairs = self.key_value(self.norm_latents(self.latents)).view(len(self.latents), 2, self.heads, -1)
        keys, values = pairs.permute(1, 2, 0, 3)
        shape = (batch, *keys.shape)
        read = nn.functional.scaled_dot_product_attention(query, keys.expand(shape), values.expand(shape))
        states = states + self.out(read.transpose(1, 2).reshape(batch, tokens, -1))
        value, gate = self.up(self.norm_inner(states)).chunk(2, dim=-1)
        return states + self.down(value * nn.functional.gelu(gate))
