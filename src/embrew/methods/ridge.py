"""Ridge regression of a teacher's vectors on embeddings, with which a distillation starts.

    W = argmin Σ ‖W v − t‖² + λ ‖W‖²,    λ = 0.003 · mean over dimensions of Σ v²

over texts, with v the embedding of a text and t the teacher's vector of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.model.attention import evaluating
from embrew.model.batching import embed_by_length
from embrew.text.tokens import Tokens

RIDGE = 0.003


def ridge(vectors: Tensor, targets: Tensor) -> Tensor:
    """Return W `(targets' width, vectors' width)`, computed in float64."""
    v, t = vectors.double(), targets.double()
    gram = v.T @ v
    gram += RIDGE * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram, v.T @ t).T.float().contiguous()


@torch.no_grad()
def embeddings_at_rest(encoder: Encoder, batches: Sequence[Tokens], embed: Callable[[Tokens], Tensor]) -> Tensor:
    """Return embeddings of texts on the CPU, without dropout, of all batches concatenated."""
    with evaluating(encoder):
        return torch.cat([embed_by_length(embed, tokens.to(encoder.device), encoder.cost).cpu() for tokens in batches])
