"""Settings, encoders and rows of every registered objective, for the tests that all objectives share."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods import OBJECTIVES, Alignment, Llama2Vec, Objective
from embrew.methods.distillation import EmbeddingDistillation
from embrew.settings.encoder import Demonstrations
from tests.conftest import SENTENCES

LENGTHS = {"min_context_tokens": 4, "min_target_tokens": 3}
VARIANTS: dict[str, list[dict[str, Any]]] = {  # of objectives that are tested with more than their defaults
    "alignment": [
        {},
        {"variant": "log_sigmoid", "detach_self": True, "end": False},
        {"variant": "kl"},
        {"variant": "js"},
    ],
    "angle": [
        {},
        {"angle_weight": 0.0, "in_batch_weight": 0.0},
        {"rows": "pairs"},
        {"rows": "pairs", "cosine_weight": 0.0, "hard_negative_weight": 0.0, "in_batch_weight": 10.0},
    ],
    "bottleneck": [{}, {"target": "text", "bos": "strict"}, {"target": "rest", "min_tokens": 3, "end": False}],
    "compression": [
        LENGTHS,
        {**LENGTHS, "include_last": False, "decoder_bos": False},
        {**LENGTHS, "nll_weight": 0.5},
        {**LENGTHS, "divergence": "nll"},
        {"divergence": "reconstruction"},
        {"divergence": "nll", "rows": "pairs", "end": True, "decoder_bos": False},
        {"rows": "pairs"},
        {**LENGTHS, "target": "both", "skip_rows": 2},
        {**LENGTHS, "target": "same", "split": "token"},
        {**LENGTHS, "divergence": "nll", "target": "both", "split": "sentence"},
    ],
    "contrastive": [
        {},
        {"symmetric": True, "temperature": 0.2},
        {"candidates": "both", "temperature": 0.2},
        {"false_negative_margin": 0.05, "false_negative_warmup": 0.0},
        {"mask_same_text": False, "gather": False, "spread_weight": 0.3},
        {"positives": "dropout", "attention_dropout": 0.1},
        {"positives": "dropout", "attention_dropout": 0.1, "symmetric": True, "candidates": "both"},
    ],
    "matryoshka": [
        {"base": {"type": "contrastive", "temperature": 0.2}, "dims": [32, 8]},
        {"base": {"type": "contrastive", "positives": "dropout", "attention_dropout": 0.1}, "dims": [16, 32]},
        {"base": {"type": "angle", "rows": "pairs"}, "dims": [32, 16, 4], "weights": [1.0, 0.5, 0.25]},
    ],
    "matryoshka_2d": [
        {"base": {"type": "contrastive", "temperature": 0.2}, "dims": [32, 8]},
        {"base": {"type": "contrastive"}, "dims": [32, 8, 16], "dims_per_step": None, "kl_weight": 0.0},
    ],
    "espresso": [
        {"base": {"type": "contrastive", "temperature": 0.2}, "compression_size": 8},
        {"base": {"type": "angle", "rows": "pairs"}, "compression_size": 4, "preset": "paper", "svd": "exact"},
        {"base": {"type": "contrastive"}, "compression_size": 16, "preset": "official", "compression": "direct"},
    ],
    "embedding_distillation": [
        {"projection": False},
        {"projection": False, "distance": "squared", "side": "query", "spread_weight": 0.5},
        {"projection": False, "layers": [2, 1]},
    ],
    "epic": [
        {},
        {"demonstrations": 2, "mask_demo_negatives": True, "plain_weight": 0.5},
        {"demo_grad": "detach", "symmetric": True, "temperature": 0.2},
    ],
    "icl": [{}, {"demonstrations": 2, "mask_demo_negatives": True}],
    "joint": [
        {"base": {"type": "contrastive", "temperature": 0.2}},
        {"base": {"type": "contrastive"}, "generative_weight": 0.5, "bos": "strict", "end": False},
    ],
    "language_model": [{}, {"end": False}],
    "llama2vec": [{}, {"stop_words": "none", "bag_weight": 1.0, "language_weight": 0.5}],
    "sft": [{}, {"end": False}],
    "mntp": [{}, {"mask_probability": 0.8, "replacement": "mask", "mask_token": "a"}],
}
IN_CONTEXT: dict[str, Any] = {
    "attention": "causal",
    "memory_tokens": 0,
    "template": "{instruction}{text}{eos}",
    "prompts": {"query": "find: "},
    "max_length": 80,
}
SETTINGS = {name: VARIANTS.get(name, [{}]) for name in OBJECTIVES}  # the first is used wherever one is enough
BARE = {"language_model", "mntp"}  # read texts without memory tokens
ENCODERS: dict[str, dict[str, Any]] = {  # where an objective needs another encoder than LLM2Comp's
    "llama2vec": {
        "attention": "causal",
        "template": '"{text}{instruction}{memory}',
        "prompts": {"document": '", in short: ', "query": '", and then: '},
    },
    "epic": {**IN_CONTEXT, "demonstrations": Demonstrations(compress="all", every=3)},
    "icl": {**IN_CONTEXT, "demonstrations": Demonstrations(compress="none", budget=200)},
    "sft": {"attention": "causal"},
    "joint": {"attention": "causal"},
    "language_model": {"attention": "causal"},
    "bottleneck": {"attention": "causal"},
    "alignment": {"attention": "causal", "prompts": {"query": "next: ", "document": "same: "}},
}
LORA = {"lora_dropout": 0.0}


def check_fits(objective: Objective, encoder: Encoder) -> None:
    """Raise unless an objective can train an encoder, by its settings and by its model."""
    objective.check_encoder(encoder.settings, len(encoder.backbone.memory_ids))
    objective.setup(encoder)


def rows_for(objective: Objective) -> list[dict[str, Any]]:
    """Rows of the kind that an objective reads."""
    if isinstance(objective, Llama2Vec):
        return [{"text": f"{text} {SENTENCES[i - 1]} {SENTENCES[i - 2]}"} for i, text in enumerate(SENTENCES)]
    if isinstance(objective, EmbeddingDistillation) and objective.base is None:
        vectors = np.random.default_rng(0).standard_normal((len(SENTENCES), 32)).tolist()
        return [{"text": text, "vector": vector} for text, vector in zip(SENTENCES, vectors, strict=True)]
    if objective.rows_kind == "text":
        return [{"text": text} for text in SENTENCES]
    if objective.rows_kind == "scored":
        texts = zip(SENTENCES, [*SENTENCES[1:], SENTENCES[0]], strict=True)
        return [{"sentence1": a[:30], "sentence2": b, "score": i % 3} for i, (a, b) in enumerate(texts)]
    return [
        {
            "query": text.split()[i],
            "positive": text,
            "negatives": [SENTENCES[i - 1][:20]] * (i % 3 or isinstance(objective, Alignment)),
            "instruction": None,
        }
        for i, text in enumerate(SENTENCES)
    ]


def prepared(objective: Objective, encoder: Encoder) -> list[dict[str, Any]]:
    """Rows as training gives them to the objective."""
    rows = rows_for(objective)
    computes = isinstance(objective, Alignment | EmbeddingDistillation)
    return list(objective.precompute(Dataset.from_list(rows), encoder)) if computes else rows


def loss_and_gradients(
    encoder: Encoder, objective: Objective, batch: dict[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, and the gradient of each trained weight by name."""
    encoder.zero_grad(set_to_none=True)
    loss = objective(encoder, batch)["loss"]
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}


def embedded(objective: Any, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
    """Embeddings by role, as the objective computes them for its loss."""
    embeddings, _ = objective.inputs.embed_all(
        encoder, batch, lambda _, tokens: objective.inputs.embed(encoder, tokens)
    )
    return embeddings
