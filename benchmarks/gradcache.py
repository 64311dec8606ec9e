"""Contrastive learning with cached gradients, beside Sentence-Transformers' cached loss and beside one plain pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import numpy as np
import peaks
import torch
from encode import encoder, stock, texts_of
from harness import Bar, Benchmark, Measure, Outcome
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

from embrew.objectives import Contrastive, EmbeddingObjective, Matryoshka2d
from embrew.training.gradcache import Chunks
from embrew.training.step import TrainStep

ROWS = 32  # texts a chunk, on both sides
TOKENS = 1_024  # padded tokens a chunk, where chunks are cut by tokens
LAYERED = {"dims": [384, 96], "dims_per_step": None}
LOSS, GRADIENTS = 1e-5, 1e-4  # relative

Step = Callable[[], float]


def pairs(batch: int) -> list[dict[str, Any]]:
    """Queries of 4 to 19 words, documents of lognormal lengths, at most 63 words."""
    queries, documents = texts_of("short"), texts_of("lognormal")
    return [
        {"query": queries[i], "positive": f"{i} " + " ".join(documents[i % len(documents)].split()[:62])}
        for i in range(batch)
    ]


def ours(batch: int, chunks: Chunks | None, *, layered: bool = False) -> tuple[Step, dict[str, torch.nn.Parameter]]:
    """Our step, all weights trained; `layered`: with the two-dimensional Matryoshka loss around it."""
    built = encoder()
    built.backbone.train_all()
    objective: EmbeddingObjective = Contrastive(mask_same_text=False)
    if layered:
        objective = Matryoshka2d(base=objective, **LAYERED)
    objective.setup(built)
    step = TrainStep(built.train(), objective, chunks)
    inputs = objective.collate(pairs(batch), built)

    def run() -> float:
        step.zero_grad(set_to_none=True)
        loss = step(**inputs)["loss"]
        loss.backward()
        return float(loss.detach())

    return run, dict(built.backbone.inner.named_parameters())


def peer(batch: int) -> tuple[Step, dict[str, torch.nn.Parameter]]:
    """Sentence-Transformers' loss on the same weights."""
    model = stock().train()
    loss_of = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=ROWS)
    rows = pairs(batch)
    features = [model.preprocess([row[side] for row in rows]) for side in ("query", "positive")]

    def run() -> float:
        model.zero_grad(set_to_none=True)
        loss = loss_of([dict(part) for part in features], torch.zeros(batch))
        loss.backward()
        return float(loss.detach())

    inner = next(module for module in model[0].modules() if hasattr(module, "embed_tokens"))
    return run, dict(inner.named_parameters())


def require_same_step(one: tuple[Step, Any], other: tuple[Step, Any]) -> dict[str, float]:
    """Loss and all gradients."""
    losses = (one[0](), other[0]())
    names = [name for name in other[1] if not name.startswith("embed_tokens")]
    gradients = [(one[1][name].grad, other[1][name].grad) for name in names]
    return {
        f"loss ({losses[1]:.5f})": harness.require_equal("losses", [losses], LOSS),
        f"gradients ({len(gradients)} tensors)": harness.require_equal("gradients", gradients, GRADIENTS),
    }


def time_of(benchmark: Benchmark, *, batch: int, rounds: int) -> Outcome:
    """A step, loss and gradients included."""
    own, theirs = ours(batch, Chunks(rows=ROWS)), peer(batch)
    equality = require_same_step(own, theirs)
    bar = Bar(gate=0.9, target=1.0, stretch=1.2)
    measure = harness.time_pairs(f"time of a step at {batch}", own[0], theirs[0], bar, unit="s", rounds=rounds)
    return Outcome(equality=equality, measures=[measure])


def alone(build: Callable[[], tuple[Step, Any]]) -> Callable[[], dict[str, float]]:
    """One side, for a process of its own."""
    step, _ = build()

    def run() -> dict[str, float]:
        return {"loss": step()}

    return run


def memory(benchmark: Benchmark) -> Outcome:
    """Growth of the peak: beside the peer and the plain step, and from 32 to 512."""
    found = peaks.memory_of(benchmark, processes=1)
    pairs = [("ours-256", "plain-256"), ("ours-256", "peer-256"), ("ours-512", "peer-512")]
    pairs += [("tokens-256", "plain-256"), ("tokens-512", "peer-512"), ("layered-256", "layered-plain-256")]
    losses = [(found[one]["loss"], found[other]["loss"]) for one, other in pairs]
    equality = {"losses": harness.require_equal("losses", losses, LOSS)}

    def measure(what: str, small: str, large: str, bar: Bar) -> Measure:
        one, other = found[small]["grew"], found[large]["grew"]
        return Measure.of(what, "MB", one, other, bar)

    return Outcome(
        equality=equality,
        measures=[
            measure("growth of peak memory at 256, plain step", "ours-256", "plain-256", Bar(gate=4, target=8)),
            measure("the same, chunks by tokens", "tokens-256", "plain-256", Bar(gate=4, target=8)),
            measure("the same, layered loss", "layered-256", "layered-plain-256", Bar(gate=4, target=8)),
            measure("growth of peak memory at 256, the peer", "ours-256", "peer-256", Bar(gate=0.9, target=1)),
            measure("growth of peak memory at 512, the peer", "ours-512", "peer-512", Bar(gate=0.9, target=1)),
            measure("growth from 32 to 512, chunks by tokens", "tokens-512", "tokens-32", Bar(gate=1 / 1.15, target=1)),
        ],
        notes={
            "growth at 512 / growth at 32, chunks by rows": found["ours-512"]["grew"] / found["ours-32"]["grew"],
            "growth at 512 / growth at 32, chunks by tokens": found["tokens-512"]["grew"] / found["tokens-32"]["grew"],
            **{f"MB, {name}": float(np.round(values["grew"], 1)) for name, values in found.items()},
        },
    )


BENCHMARKS = [
    Benchmark(
        name="gradcache-step",
        title="A contrastive step at 256 pairs, chunks of 32, against Sentence-Transformers' cached loss: 6-layer "
        "Llama of width 384, all weights trained, float32, one core.",
        run=partial(time_of, batch=256, rounds=5),
    ),
    Benchmark(
        name="gradcache-step-512",
        title="The same at 512 pairs.",
        run=partial(time_of, batch=512, rounds=3),
    ),
    Benchmark(
        name="gradcache-memory",
        title="Memory of that step against the peer's and against one plain pass.",
        run=memory,
        variants={
            **{f"ours-{n}": partial(alone, partial(ours, n, Chunks(rows=ROWS))) for n in (32, 256, 512)},
            **{f"tokens-{n}": partial(alone, partial(ours, n, Chunks(tokens=TOKENS))) for n in (32, 256, 512)},
            "layered-256": partial(alone, partial(ours, 256, Chunks(tokens=TOKENS), layered=True)),
            "layered-plain-256": partial(alone, partial(ours, 256, None, layered=True)),
            "plain-256": partial(alone, partial(ours, 256, None)),
            **{f"peer-{n}": partial(alone, partial(peer, n)) for n in (256, 512)},
        },
    ),
]
