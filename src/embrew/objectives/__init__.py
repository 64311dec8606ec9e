"""Training objectives, by the name a recipe calls them."""

from __future__ import annotations

from embrew.objectives.angle import Angle
from embrew.objectives.base import EmbeddingObjective, Objective
from embrew.objectives.compression import Compression
from embrew.objectives.contrastive import Contrastive
from embrew.objectives.matryoshka import Matryoshka, Matryoshka2d
from embrew.objectives.mntp import MaskedNextToken

OBJECTIVES: dict[str, type[Objective]] = {
    "angle": Angle,
    "compression": Compression,
    "contrastive": Contrastive,
    "matryoshka": Matryoshka,
    "matryoshka_2d": Matryoshka2d,
    "mntp": MaskedNextToken,
}

__all__ = [
    "OBJECTIVES",
    "Angle",
    "Compression",
    "Contrastive",
    "EmbeddingObjective",
    "MaskedNextToken",
    "Matryoshka",
    "Matryoshka2d",
    "Objective",
]
