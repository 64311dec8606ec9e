"""Texts of lognormal lengths on a GPU: packed rows against groups of padded rows, on one model."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import gpu
import harness
import numpy as np
import torch
from ctkd import qwen3, random_model
from harness import SEED, Bar, Benchmark, Measure, Outcome
from models import nano_tokenizer
from torch import Tensor

from embrew.modeling.embedding.batching import embed_by_length, groups_by_length
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.attention import VARLEN
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.model.base import Base
from embrew.modeling.model.cost import Cost
from embrew.modeling.text.tokens import Row, Segment, Tokens

TEXTS = 1_024
TRAINED = 256  # texts of a training step
BATCH_TOKENS = 16_384
CLOSE = 0.03  # largest difference of a component of a unit vector, in bfloat16
ROUNDS = 20


def rows_of(vocabulary: int) -> list[Row]:
    """Random tokens; lengths as those of `encode-lognormal`."""
    generator = np.random.default_rng(SEED)
    lengths = np.clip(generator.lognormal(4, 1, TEXTS), 2, 500).astype(int)
    return [Row.of(generator.integers(3, vocabulary, length).tolist(), Segment.TEXT) for length in lengths]


def with_kernel(encoder: Encoder, kernel: str, step: Callable[[], Tensor]) -> Tensor:
    """Run a step with an attention kernel of the encoder."""
    encoder.backbone.inner.config._attn_implementation = kernel
    return step()


def trained(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return vectors after a forward and a backward pass."""
    encoder.zero_grad(set_to_none=True)
    vectors = embed_by_length(encoder, tokens, encoder.cost)
    vectors.square().sum().backward()
    return vectors.detach()


def compare(what: str, encoder: Encoder, step: Callable[[], Tensor], tokens: int, bar: Bar) -> Measure:
    """Time both kernels in turn."""
    sides = [partial(with_kernel, encoder, kernel, step) for kernel in (VARLEN, "sdpa")]
    for side in sides:
        side()
    taken = [[gpu.seconds(side) for side in sides] for _ in range(ROUNDS)]
    pairs = tuple(padded / packed for packed, padded in taken)
    ours, peer = (1e6 * statistics.median(side) / tokens for side in zip(*taken, strict=True))
    return Measure(
        what=what,
        unit="us per token",
        ours=ours,
        peer=peer,
        ratio=statistics.median(pairs),
        bar=bar,
        low=min(pairs),
        high=max(pairs),
        pairs=pairs,
        steady=max(pairs) / min(pairs) <= harness.SPREAD,
    )


def packed(benchmark: Benchmark, *, attention: str) -> Outcome:
    """Time per real token, and padding: of encoding, and of a forward and backward pass."""
    model = random_model(qwen3(1024, 3072), gpu.DEVICE, torch.bfloat16)
    settings = {"attention": attention, "pooling": "mean", "normalize": True}
    encoder = Encoder(Backbone(model), nano_tokenizer(), Base("folder", "random"), **settings)
    rows = rows_of(model.config.vocab_size)
    real = sum(len(row.ids) for row in rows)
    encode = partial(encoder.embed_rows, rows, batch_tokens=BATCH_TOKENS)
    own, theirs = (with_kernel(encoder, kernel, encode) for kernel in (VARLEN, "sdpa"))
    own, theirs = (torch.nn.functional.normalize(side, dim=-1) for side in (own, theirs))
    equality = {"unit vectors in bfloat16": harness.require_equal("vectors", [(own, theirs)], CLOSE)}
    encoder.backbone.inner.config._attn_implementation = VARLEN
    with torch.inference_mode():
        if not encoder.packs:
            raise harness.Unequal("packed rows were not verified on this machine; the log says why")
    measures = [compare("time to encode", encoder, encode, real, Bar(gate=1.0, target=1.2))]
    encoder.requires_grad_(True).train()
    some = Tokens.pad(rows[:TRAINED]).to(gpu.DEVICE)
    measures.append(
        compare(
            "time of a forward and backward pass",
            encoder,
            partial(trained, encoder, some),
            int(some.attention_mask.sum()),
            Bar(gate=1.0, target=1.1),
        )
    )
    everything = Tokens.pad(rows).to(gpu.DEVICE)
    groups = groups_by_length(everything, Cost(8_192), batch_tokens=BATCH_TOKENS)
    padded = sum(len(group) * max(len(rows[i].ids) for i in group) for group in groups)
    return Outcome(
        equality=equality,
        measures=measures,
        notes={"real tokens": real, "padding of the groups": padded / real - 1, **gpu.ceilings()},
    )


BENCHMARKS = tuple(
    Benchmark(
        name=f"packed-gpu-{attention}",
        title=f"Packed rows against padded groups, {attention}: random weights of Qwen3-0.6B's shape, bfloat16.",
        run=partial(packed, attention=attention),
        gpu=True,
    )
    for attention in ("causal", "bidirectional")
)
