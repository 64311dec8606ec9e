"""Training objectives, by their names in recipes."""

from __future__ import annotations

from embrew.methods.angle import Angle
from embrew.methods.autoregembed import Alignment
from embrew.methods.base import Objective
from embrew.methods.compression import Compression
from embrew.methods.distillation import EmbeddingDistillation
from embrew.methods.embedding import EmbeddingObjective as EmbeddingObjective
from embrew.methods.epic import Epic, InContext
from embrew.methods.ese import Espresso
from embrew.methods.generative import Joint, LanguageModel, SupervisedFineTuning
from embrew.methods.info_nce import Contrastive
from embrew.methods.lbr import Bottleneck
from embrew.methods.llama2vec import Llama2Vec
from embrew.methods.llm2vec import MaskedNextToken
from embrew.methods.matryoshka import Matryoshka, Matryoshka2d

OBJECTIVES: dict[str, type[Objective]] = {
    "alignment": Alignment,
    "angle": Angle,
    "bottleneck": Bottleneck,
    "compression": Compression,
    "contrastive": Contrastive,
    "embedding_distillation": EmbeddingDistillation,
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
