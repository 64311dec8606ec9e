"""The sum of adapters that were merged into a layer whose weight cannot hold them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LowRank(nn.Module):
    """Up · down, float32: merged LoRAs, their factors concatenated, so that nothing is rounded.

    Attributes:
        down: `(rank, in)`.
        up: `(out, rank)`, scaled.
    """

    down: Tensor
    up: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.register_buffer("down", torch.zeros(0, in_features))
        self.register_buffer("up", torch.zeros(out_features, 0))

    @property
    def rank(self) -> int:
        """The sum of the ranks; 0 before anything is merged."""
        return len(self.down)

    def add(self, down: Tensor, up: Tensor) -> None:
        """Add `up @ down`."""
        self.down = torch.cat([self.down, down.detach().to(self.down)])
        self.up = torch.cat([self.up, up.detach().to(self.up)], dim=1)

    def weight(self) -> Tensor:
        """Return the sum as one matrix, `(out, in)`."""
        return self.up @ self.down

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out)` of `(…, in)`, in float32 unless autocast says otherwise."""
        return nn.functional.linear(nn.functional.linear(x.to(self.down.dtype), self.down), self.up)
