"""The trained part of demonstrations: it turns their embeddings into input embeddings of a prompt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embrew.settings.demonstrations import Demonstrations


class Demonstrator(nn.Module):
    """g = Linear → GELU → Linear, both with biases; or learned vectors instead; or nothing, where all is text.

    EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), Eq. 3, which leaves open
    the inner width (ours: that of a state) and how g starts. Here its output begins on the scale of the language
    model's input embeddings (`prompting.vectors.start`), one or two orders below that of a final state. What comes out
    is what the first layer reads: an input embedding after whatever scaling the model family does.

    Frozen until an objective trains it.

    Args:
        settings: which parts of a demonstration are vectors.
        width: of a state.
        seed: of the initial values.
    """

    def __init__(self, settings: Demonstrations, width: int, *, seed: int = 42) -> None:
        super().__init__()
        self.settings = settings
        self.project: nn.Sequential | None = None
        self.learned: nn.Parameter | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if settings.projects:
                self.project = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            if settings.learnable:
                self.learned = nn.Parameter(0.02 * torch.randn(2 * settings.learnable, width))
        self.requires_grad_(False)

    def forward(self, embeddings: Tensor | None = None) -> Tensor:
        """Project raw embeddings `(vectors, width)` to input embeddings for a prompt, `(vectors, width)`.

        Without embeddings, return the learned vectors.
        """
        if embeddings is None and self.learned is not None:
            return self.learned.clone()
        if self.project is None or embeddings is None:
            raise ValueError("these demonstrations are not projected: they are text, or learned")
        if self.settings.normalize:
            embeddings = nn.functional.normalize(embeddings, dim=-1)
        projected: Tensor = self.project(embeddings.to(self.project[0].weight.dtype))  # type: ignore[arg-type]
        return projected
