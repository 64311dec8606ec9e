"""Training objectives, by their names in recipes."""

from __future__ import annotations

from embrew.objectives.angle import Angle
from embrew.objectives.base import Objective
from embrew.objectives.bottleneck import Bottleneck
from embrew.objectives.compression import Compression
from embrew.objectives.conditional_alignment import Alignment
from embrew.objectives.contrastive import Contrastive
from embrew.objectives.embedding import EmbeddingObjective
from embrew.objectives.epic import Epic
from embrew.objectives.espresso import Espresso
from embrew.objectives.in_context import InContext
from embrew.objectives.joint import Joint
from embrew.objectives.language_model import LanguageModel
from embrew.objectives.llama2vec import Llama2Vec
from embrew.objectives.matryoshka import Matryoshka, Matryoshka2d
from embrew.objectives.mntp import MaskedNextToken
from embrew.objectives.sft import SupervisedFineTuning

OBJECTIVES: dict[str, type[Objective]] = {
    "alignment": Alignment,
    "angle": Angle,
    "bottleneck": Bottleneck,
    "compression": Compression,
    "contrastive": Contrastive,
    "epic": Epic,
    "espresso": Espresso,
    "icl": InContext,
    "joint": Joint,
    "language_model": LanguageModel,
    "llama2vec": Llama2Vec,
    "matryoshka": Matryoshka,
    "matryoshka_2d": Matryoshka2d,
    "mntp": MaskedNextToken,
    "sft": SupervisedFineTuning,
}

__all__ = [
    "OBJECTIVES",
    "Alignment",
    "Angle",
    "Bottleneck",
    "Compression",
    "Contrastive",
    "EmbeddingObjective",
    "Epic",
    "Espresso",
    "InContext",
    "Joint",
    "LanguageModel",
    "Llama2Vec",
    "MaskedNextToken",
    "Matryoshka",
    "Matryoshka2d",
    "Objective",
    "SupervisedFineTuning",
]
