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

from embrew.methods import Contrastive, EmbeddingObjective, Matryoshka2d
from embrew.training.gradcache import Chunks
from embrew.training.step import TrainStep

ROWS = 32  # texts a chunk, on both sides
TOKENS = 1_024  # padded tokens a chunk, where chunks are cut by tokens
LAYERED = {"dims": [384, 96], "dims_per_step": None}
LOSS, GRADIENTS = 1e-5, 1e-4  # relative
BAR = Bar(gate=0.9, target=1.0, stretch=1.2)

Step = Callable[[], float]


def pairs(batch: int, equal: bool = False) -> list[dict[str, Any]]:
    """Queries of 4 to 19 words, documents of lognormal lengths, at most 63 words; `equal`: 32 words each."""
    queries, documents = texts_of("short"), texts_of("lognormal")
    if equal:
        words = " ".join(documents).split()
        texts = [" ".join(words[32 * i : 32 * i + 32]) for i in range(2 * batch)]
        return [{"query": texts[i], "positive": texts[batch + i]} for i in range(batch)]
    return [
        {"query": queries[i], "positive": f"{i} " + " ".join(documents[i % len(documents)].split()[:62])}
        for i in range(batch)
    ]


def ours(
    batch: int, chunks: Chunks | None, *, layered: bool = False, equal: bool = False
) -> tuple[Step, dict[str, torch.nn.Parameter]]:
    """Our step, all weights trained; `layered`: with the two-dimensional Matryoshka loss around it."""
    built = encoder()
    built.backbone.train_all()
    objective: EmbeddingObjective = Contrastive(mask_same_text=False)
    if layered:
        objective = Matryoshka2d(base=objective, **LAYERED)
    objective.setup(built)
    step = TrainStep(built.train(), objective, chunks)
    inputs = objective.collate(pairs(batch, equal), built)

    def run() -> float:
        step.zero_grad(set_to_none=True)
        loss = step(**inputs)["loss"]
        loss.backward()
        return float(loss.detach())

    return run, dict(built.backbone.inner.named_parameters())


def peer(batch: int, *, tokens: int | None = None, equal: bool = False) -> tuple[Step, dict[str, torch.nn.Parameter]]:
    """Sentence-Transformers' loss on the same weights.

    Its budget of tokens counts those that are no padding, and takes texts in the order of the batch; ours counts
    padding too, and takes texts by length.
    """
    model = stock().train()
    limits: dict[str, Any] = {"mini_batch_num_tokens": tokens} if tokens else {"mini_batch_size": ROWS}
    loss_of = CachedMultipleNegativesRankingLoss(model, scale=20.0, **limits)
    rows = pairs(batch, equal)
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


def tokens_of(batch: int, equal: bool = False) -> int:
    """Tokens of a step without padding: every text passes the model twice."""
    texts = [text for row in pairs(batch, equal) for text in row.values()]
    return 2 * sum(len(row.ids) for row in encoder().template.rows(texts))


def time_of(benchmark: Benchmark, *, batch: int, rounds: int) -> Outcome:
    """A step, loss and gradients included."""
    own, theirs = ours(batch, Chunks(rows=ROWS)), peer(batch)
    equality = require_same_step(own, theirs)
    tokens = tokens_of(batch)
    measure = harness.time_pairs(
        f"time of a step at {batch}", own[0], theirs[0], BAR, unit="s", rounds=rounds, tokens=(tokens, tokens)
    )
    return Outcome(equality=equality, measures=[measure])


def by_tokens(benchmark: Benchmark, *, batch: int, rounds: int) -> Outcome:
    """The same with chunks of one budget of tokens on both sides, texts of lognormal and of equal lengths."""
    equality, sides, tokens = {}, {}, {}
    for lengths in ("lognormal", "equal"):
        equal = lengths == "equal"
        own = ours(batch, Chunks(tokens=TOKENS), equal=equal)
        theirs = peer(batch, tokens=TOKENS, equal=equal)
        equality |= {f"{lengths}, {what}": gap for what, gap in require_same_step(own, theirs).items()}
        sides |= {f"ours, {lengths}": own[0], f"peer, {lengths}": theirs[0]}
        if not equal:  # the peer's other form, where its default and its best may differ
            sides["peer by rows, lognormal"] = peer(batch)[0]
        tokens |= {name: tokens_of(batch, equal) for name in sides if name.endswith(lengths)}
    compared = [("ours, lognormal", name) for name in sides if "peer" in name and "lognormal" in name]
    compared.append(("ours, equal", "peer, equal"))
    turns = harness.take_turns(sides, compared, rounds=rounds, tokens=tokens)
    measures = [turns.measure(f"{own} against {other}", own, other, BAR, "s") for own, other in compared]
    return Outcome(equality=equality, measures=measures)


def alone(build: Callable[[], tuple[Step, Any]]) -> Callable[[], dict[str, float]]:
    """One side, for a process of its own."""
    step, _ = build()

    def run() -> dict[str, float]:
        return {"loss": step()}

    return run


def memory(benchmark: Benchmark) -> Outcome:
    """Growth of the peak: beside the peer and the plain step, and from 32 to 512."""
    found = peaks.memory_of(benchmark, processes=1)
    pairs = [("ours-256", "plain-256"), ("ours-256", "peer-256"), ("tokens-256", "peer-tokens-256")]
    pairs += [("tokens-256", "plain-256"), ("layered-256", "layered-plain-256")]
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
            measure(
                "the same, chunks by tokens on both sides", "tokens-256", "peer-tokens-256", Bar(gate=0.9, target=1)
            ),
            measure("growth from 32 to 512, chunks by tokens", "tokens-512", "tokens-32", Bar(gate=1 / 1.15, target=1)),
        ],
        notes={
            "growth at 512 / growth at 32, chunks by tokens": found["tokens-512"]["grew"] / found["tokens-32"]["grew"],
            "growth at 512 / growth at 256, chunks by tokens": found["tokens-512"]["grew"]
            / found["tokens-256"]["grew"],
        }
        | {f"MB, {name}": float(np.round(values["grew"], 1)) for name, values in found.items()},
    )


BENCHMARKS = [
    Benchmark(
        name="gradcache-step",
        title="A contrastive step at 256 pairs, chunks of 32, against Sentence-Transformers' cached loss: 6-layer "
        "Llama of width 384, all weights trained, float32, one core.",
        run=partial(time_of, batch=256, rounds=3),
    ),
    Benchmark(
        name="gradcache-tokens",
        title=f"The same at 64 pairs, chunks of {TOKENS:,} tokens, against mini_batch_num_tokens={TOKENS:,}.",
        run=partial(by_tokens, batch=64, rounds=5),
    ),
    Benchmark(
        name="gradcache-memory",
        title="Memory of that step against the peer's and against one plain pass.",
        run=memory,
        variants={
            "ours-256": partial(alone, partial(ours, 256, Chunks(rows=ROWS))),
            **{f"tokens-{n}": partial(alone, partial(ours, n, Chunks(tokens=TOKENS))) for n in (32, 256, 512)},
            "layered-256": partial(alone, partial(ours, 256, Chunks(tokens=TOKENS), layered=True)),
            "layered-plain-256": partial(alone, partial(ours, 256, None, layered=True)),
            "plain-256": partial(alone, partial(ours, 256, None)),
            "peer-256": partial(alone, partial(peer, 256)),
            "peer-tokens-256": partial(alone, partial(peer, 256, tokens=TOKENS)),
        },
    ),
]
