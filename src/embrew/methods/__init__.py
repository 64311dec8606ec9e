"""Training objectives, by their names in recipes."""

from __future__ import annotations

from embrew.methods.angle import Angle
from embrew.methods.base import Objective
from embrew.methods.bottleneck import Bottleneck
from embrew.methods.compression import Compression
from embrew.methods.conditional_alignment import Alignment
from embrew.methods.contrastive import Contrastive
from embrew.methods.embedding import EmbeddingObjective
from embrew.methods.epic import Epic
from embrew.methods.espresso import Espresso
from embrew.methods.in_context import InContext
from embrew.methods.joint import Joint
from embrew.methods.language_model import LanguageModel
from embrew.methods.llama2vec import Llama2Vec
from embrew.methods.matryoshka import Matryoshka, Matryoshka2d
from embrew.methods.mntp import MaskedNextToken
from embrew.methods.sft import SupervisedFineTuning

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
