"""Encoding on a GPU: tokens per second by length, beside what a matrix product reaches in the same minute."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import gpu
import numpy as np
import torch

from drill import model, sizes
from drill.measure import idle_share
from drill.record import Result
from embrew.modeling.encoder import Encoder
from embrew.modeling.text.tokens import Row, Segment


def throughput(shape: str) -> Result:
    """Encode random tokens of several lengths, and of lengths as those of real texts."""
    now = sizes.now()
    encoder = model.encoder(shape, attention="causal", pooling="mean", max_length=4096)
    ceiling = gpu.ceilings()
    rows = [one_length(encoder, length, ceiling, now.batches[shape]) for length in now.lengths]
    mixed = lognormal(now.batches[shape] * now.batch_tokens)
    rows.append({"length": "lognormal", **measured(encoder, mixed, ceiling)})
    at = {row["length"]: row for row in rows}
    middle = at[512]
    figures: dict[str, Any] = {
        **ceiling,
        "tokens_per_s": middle["tokens/s"],
        "share_512": middle["share of ceiling"],
        "idle_share": middle["idle"],
        "peak_gb": max(row["peak GB"] for row in rows),
        "weights_gb": sum(p.numel() * p.element_size() for p in encoder.parameters()) / 2**30,
        "by length": rows,
    }
    return {"figures": figures, "checks": {"vectors are finite and of one length": middle["finite"]}}


def one_length(encoder: Encoder, length: int, ceiling: dict[str, float], batches: int) -> dict[str, Any]:
    """Encode full batches of one length."""
    now = sizes.now()
    return {"length": length, **measured(encoder, [length] * max(1, batches * now.batch_tokens // length), ceiling)}


def measured(encoder: Encoder, lengths: list[int], ceiling: dict[str, float]) -> dict[str, Any]:
    """Return rate, share of the ceiling, peak memory and idle share of one call over rows of random tokens."""
    now = sizes.now()
    generator = np.random.default_rng(0)
    vocabulary = encoder.backbone.vocab_size
    rows = [Row.of(generator.integers(3, vocabulary, length).tolist(), Segment.TEXT) for length in lengths]
    encode = partial(encoder.embed_rows, rows, batch_tokens=now.batch_tokens)
    vectors = encode()  # kernels are compiled and verified
    peak = gpu.peak(encode)
    seconds = statistics.median(gpu.seconds(encode) for _ in range(3))
    flop = sum(flop_of(encoder, length) for length in lengths)
    return {
        "tokens/s": sum(lengths) / seconds,
        "texts/s": len(lengths) / seconds,
        "TFLOP/s": 1e-12 * flop / seconds,
        "share of ceiling": 1e-12 * flop / seconds / ceiling["matmul_bf16_tflops"],
        "idle": idle_share(encode),
        "peak GB": peak,
        "finite": bool(torch.isfinite(vectors).all()) and vectors.shape == (len(rows), encoder.width),
    }


def flop_of(encoder: Encoder, length: int) -> float:
    """Return the operations of a text's forward pass: of the layers' weights, and of causal attention."""
    config = encoder.backbone.inner.config
    layers = sum(p.numel() for name, p in encoder.backbone.inner.named_parameters() if "embed_tokens" not in name)
    width = config.num_attention_heads * config.head_dim
    return length * (2.0 * layers + 4.0 * config.num_hidden_layers * width * (length + 1) / 2)


def lognormal(total: int) -> list[int]:
    """Return lengths as those of `encode-lognormal`, of about `total` tokens."""
    drawn = np.clip(np.random.default_rng(0).lognormal(4, 1, max(4, total // 80)), 2, 500).astype(int)
    return [int(length) for length in drawn]
