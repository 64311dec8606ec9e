"""What the tests that all objectives share need to know of each: an entry per registered objective."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods import Llama2Vec, Objective
from embrew.methods.distillation import EmbeddingDistillation
from embrew.settings.encoder import Demonstrations
from tests.conftest import SENTENCES

Range = tuple[list[Any], list[Any]]  # values that are allowed, and some that are not
POSITIVE: Range = ([1e-3, 1, 20.0], [0, -1, 0.0, None])
TEMPERATURE: Range = ([1e-4, 1, 20.0, 1e4], [0, -1, 1e-30, 1e30, None])
NOT_NEGATIVE: Range = ([0, 0.0, 0.5, 10], [-1, -1e-9, None])
COUNT: Range = ([1, 2, 6], [0, -1, 1.5, 2.0, None])
COUNT_OR_NONE: Range = ([0, 1], [-1, 1.5, None])
SHARE: Range = ([0, 0.5, 1], [-0.1, 1.1, None])
SPREAD = {"spread_weight": NOT_NEGATIVE}
CONTRASTIVE = {
    **SPREAD,
    "temperature": TEMPERATURE,
    "attention_dropout": ([0, 0.99], [1, 2, -0.1, None]),
    "false_negative_margin": ([None, -2, 0, 0.1, 2], [2.1, -2.1]),
    "false_negative_warmup": SHARE,
    "distillation_weight": NOT_NEGATIVE,
    "distillation_temperature": TEMPERATURE,
}
DIMS: Range = ([[1], [8, 4]], [[], [0], [-4], [4, 4], [4.5], 4, None])
LENGTHS = {"min_context_tokens": 4, "min_target_tokens": 3}
CAUSAL: dict[str, Any] = {"attention": "causal"}
IN_CONTEXT: dict[str, Any] = {
    "attention": "causal",
    "memory_tokens": 0,
    "template": "{instruction}{text}{eos}",
    "prompts": {"query": "find: "},
    "max_length": 80,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """An objective in the tests that all objectives share.

    Attributes:
        settings: variants of its settings; the first is used wherever one is enough.
        ranges: range of each setting that is a number.
        required: settings without a default.
        encoder: settings of the encoder, where it needs another one than LLM2Comp's.
        reads_memory: whether its loss depends on memory tokens.
    """

    settings: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    ranges: dict[str, Range] = field(default_factory=dict)
    required: dict[str, Any] = field(default_factory=dict)
    encoder: dict[str, Any] = field(default_factory=dict)
    reads_memory: bool = True


CASES: dict[str, Case] = {
    "alignment": Case(
        settings=[
            {},
            {"variant": "log_sigmoid", "detach_self": True, "end": False},
            {"variant": "kl"},
            {"variant": "js"},
        ],
        ranges={"beta": POSITIVE, "temperature": TEMPERATURE},
        encoder={**CAUSAL, "prompts": {"query": "next: ", "document": "same: "}},
    ),
    "angle": Case(
        settings=[
            {},
            {"angle_weight": 0.0, "in_batch_weight": 0.0},
            {"rows": "pairs"},
            {"rows": "pairs", "cosine_weight": 0.0, "hard_negative_weight": 0.0, "in_batch_weight": 10.0},
        ],
        ranges={
            **SPREAD,
            "cosine_weight": NOT_NEGATIVE,
            "in_batch_weight": NOT_NEGATIVE,
            "angle_weight": NOT_NEGATIVE,
            "hard_negative_weight": NOT_NEGATIVE,
            "temperature": TEMPERATURE,
            "angle_temperature": TEMPERATURE,
        },
    ),
    "bottleneck": Case(
        settings=[{}, {"target": "text", "bos": "strict"}, {"target": "rest", "min_tokens": 3, "end": False}],
        ranges={"min_tokens": COUNT},
        encoder=CAUSAL,
    ),
    "compression": Case(
        settings=[
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
        ranges={
            "min_context_tokens": COUNT_OR_NONE,
            "min_target_tokens": COUNT,
            "nll_weight": NOT_NEGATIVE,
            "skip_rows": COUNT_OR_NONE,
            "held_out": ([0, 2, 64], [1, -1, 1.5, None]),
        },
    ),
    "contrastive": Case(
        settings=[
            {},
            {"symmetric": True, "temperature": 0.2},
            {"candidates": "both", "temperature": 0.2},
            {"false_negative_margin": 0.05, "false_negative_warmup": 0.0},
            {"mask_same_text": False, "gather": False, "spread_weight": 0.3},
            {"positives": "dropout", "attention_dropout": 0.1},
            {"positives": "dropout", "attention_dropout": 0.1, "symmetric": True, "candidates": "both"},
        ],
        ranges=CONTRASTIVE,
    ),
    "embedding_distillation": Case(
        settings=[
            {"projection": False},
            {"projection": False, "distance": "squared", "side": "query", "spread_weight": 0.5},
            {"projection": False, "layers": [2, 1]},
        ],
        ranges={
            **SPREAD,
            "fitted": COUNT_OR_NONE,
            "layers": ([None, [1], [2, 1]], [[], [0], [1, 1], [1.5], 1]),
            "dims": ([None, [1], [8, 4]], [[], [0], [4, 4], [4.5], 4]),
            "base_weight": NOT_NEGATIVE,
        },
    ),
    "epic": Case(
        settings=[
            {},
            {"demonstrations": 2, "mask_demo_negatives": True, "plain_weight": 0.5},
            {"demo_grad": "detach", "symmetric": True, "temperature": 0.2},
        ],
        ranges={**CONTRASTIVE, "demonstrations": COUNT_OR_NONE, "plain_weight": NOT_NEGATIVE},
        encoder={**IN_CONTEXT, "demonstrations": Demonstrations(compress="all", every=3)},
    ),
    "espresso": Case(
        settings=[
            {"base": {"type": "contrastive", "temperature": 0.2}, "compression_size": 8},
            {"base": {"type": "angle", "rows": "pairs"}, "compression_size": 4, "preset": "paper", "svd": "exact"},
            {"base": {"type": "contrastive"}, "compression_size": 16, "preset": "official", "compression": "direct"},
        ],
        ranges={
            **SPREAD,
            "compression_size": ([2, 4], [0, -1, 1.5, None]),
            "express_weight": NOT_NEGATIVE,
            "compress_weight": NOT_NEGATIVE,
            "temperature": TEMPERATURE,
        },
    ),
    "icl": Case(
        settings=[{}, {"demonstrations": 2, "mask_demo_negatives": True}],
        ranges={**CONTRASTIVE, "demonstrations": COUNT_OR_NONE},
        encoder={**IN_CONTEXT, "demonstrations": Demonstrations(compress="none", budget=200)},
    ),
    "joint": Case(
        settings=[
            {"base": {"type": "contrastive", "temperature": 0.2}},
            {"base": {"type": "contrastive"}, "generative_weight": 0.5, "bos": "strict", "end": False},
        ],
        ranges={"min_tokens": COUNT, "generative_weight": NOT_NEGATIVE},
        required={"base": {"type": "contrastive"}},
        encoder=CAUSAL,
    ),
    "language_model": Case(settings=[{}, {"end": False}], encoder=CAUSAL, reads_memory=False),
    "llama2vec": Case(
        settings=[{}, {"stop_words": "none", "bag_weight": 1.0, "language_weight": 0.5}],
        ranges={"bag_weight": NOT_NEGATIVE, "language_weight": NOT_NEGATIVE},
        encoder={
            **CAUSAL,
            "template": '"{text}{instruction}{memory}',
            "prompts": {"document": '", in short: ', "query": '", and then: '},
        },
    ),
    "matryoshka": Case(
        settings=[
            {"base": {"type": "contrastive", "temperature": 0.2}, "dims": [32, 8]},
            {"base": {"type": "contrastive", "positives": "dropout", "attention_dropout": 0.1}, "dims": [16, 32]},
            {"base": {"type": "angle", "rows": "pairs"}, "dims": [32, 16, 4], "weights": [1.0, 0.5, 0.25]},
        ],
        ranges={**SPREAD, "dims": DIMS, "weights": ([None, [1, 0.0]], [[], [-1, 1], [1], [0, 0], [math.nan, 1]])},
        required={"base": {"type": "contrastive"}, "dims": [8, 4]},
    ),
    "matryoshka_2d": Case(
        settings=[
            {"base": {"type": "contrastive", "temperature": 0.2}, "dims": [32, 8]},
            {"base": {"type": "contrastive"}, "dims": [32, 8, 16], "dims_per_step": None, "kl_weight": 0.0},
        ],
        ranges={
            **SPREAD,
            "dims": ([[8, 4]], DIMS[1]),
            "weights": ([None, [1, 0.0]], [[], [-1, 1], [1], [0, 0], [math.inf, 1]]),
            "layers_per_step": COUNT,
            "dims_per_step": ([None, 0, 1], [-1, 2, 1.5]),
            "last_layer_weight": NOT_NEGATIVE,
            "layer_weight": NOT_NEGATIVE,
            "kl_weight": NOT_NEGATIVE,
            "kl_temperature": TEMPERATURE,
        },
        required={"base": {"type": "contrastive"}, "dims": [8, 4]},
    ),
    "mntp": Case(
        settings=[{}, {"mask_probability": 0.8, "replacement": "mask", "mask_token": "a"}],
        ranges={"mask_probability": ([1e-3, 1], [0, 1.1, -1, None])},
        reads_memory=False,
    ),
    "sft": Case(settings=[{}, {"end": False}], encoder=CAUSAL),
}
SETTINGS = {name: case.settings for name, case in CASES.items()}
ENCODERS = {name: case.encoder for name, case in CASES.items()}
BARE = {name for name, case in CASES.items() if not case.reads_memory}
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
            "negatives": [SENTENCES[i - 1][:20]] * (i % 3 or objective.needs_negatives),
            "instruction": None,
        }
        for i, text in enumerate(SENTENCES)
    ]


def prepared(objective: Objective, encoder: Encoder) -> list[dict[str, Any]]:
    """Rows as training gives them to the objective."""
    rows = rows_for(objective)
    computes = type(objective).precompute is not Objective.precompute
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
