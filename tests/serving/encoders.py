"""Encoders of every kind that is served, and what a request for their vectors has to be answered with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from embrew.corpus.job import Ranges
from embrew.encoder import Encoder
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from tests.conftest import SENTENCES
from tests.serving.running import serving

LONG = "Instruct: find passages that answer the question.\nQuery: "
PROMPTS = {"query": "find: ", "document": "", "long": LONG}
TEXTS: list[Any] = [
    SENTENCES[0],
    "",
    "a",
    [70, 71, 72, 73],
    "ends with </s> and <pad> {text} {instruction}",
    "👩🏽‍🚀 and 今日は雨, nul \x00, e\u0301",
    "beyond both limits " * 30,
    " leading and trailing ",
    SENTENCES[4],
]
DECODER: dict[str, Any] = {"memory_tokens": 0, "attention": "causal", "template": "{instruction}{text}{eos}"}
EOL = 'This sentence: "{text}" means in one word:"'
KINDS: dict[str, dict[str, Any]] = {
    "last": {**DECODER, "pooling": "last"},
    "memory, mean": {},
    "memory, concatenated": {"pooling": Pooling("concat", "memory"), "attention": "causal"},
    "memory by ratio": {"memory_ratio": 8},
    "memory, bottleneck": {"attention": "memory_causal"},
    "soft prompt": {"template": "{soft_prompt}{instruction}{text}{eos}", "soft_prompt_tokens": 3, "attention": "causal"}
    | {"memory_tokens": 0, "pooling": "mean"},
    "one word": {**DECODER, "template": "{instruction}" + EOL, "preparation": "sentence"},
    "several templates": {**DECODER, "template": [EOL, "{instruction}{text} is about one thing, in one word:"]},
    "echo": {**DECODER, "template": "{instruction}{text} again: {echo}", "pooling": Pooling("mean", "echo")},
    "latent attention": {
        "memory_tokens": 0,
        "attention": "bidirectional",
        "pooling": Pooling("mean", "text", latents=4, heads=2),
    },
    "bidirectional": {"memory_tokens": 0, "attention": "bidirectional", "pooling": Pooling("mean", "text")},
    "prompt after the text": {**DECODER, "template": "{text} {instruction}", "pooling": Pooling("mean", "text")},
    "default prompt": {**DECODER, "pooling": "weighted_mean", "default_prompt_name": "long"},
    "not normalised": {**DECODER, "normalize": False},
    "sliding window": {**DECODER, "family": "mistral"},
}
LIMITS = {"query": 100, "document": 112}


def made(make_encoder: Callable[..., Encoder], kind: str) -> Encoder:
    """Return a tiny encoder with prompts, two limits, an adapter, and a context where it reads demonstrations."""
    options = {"max_length": LIMITS, "prompts": PROMPTS, "lora": {}, **KINDS[kind]}
    reads = kind in ("last", "not normalised", "default prompt")
    encoder = make_encoder(demonstrations=Demonstrations() if reads else None, **options)
    if reads:
        initialize_demonstrator(encoder)
        pairs = (Demonstration("sea?", SENTENCES[3]), Demonstration("what is a fox?", SENTENCES[0]))
        encoder.add_context("sea", Context("Find it: ", pairs))
    return encoder


@contextmanager
def serving_copy(encoder: Any, **settings: Any) -> Iterator[str]:
    """Serve a copy of an encoder in this process; yields the address."""
    opened = mock.patch("embrew.serving.service.open_model", return_value=copy.deepcopy(encoder))
    with opened, serving("tiny", **settings) as address:
        yield address


def wanted(encoder: Any, texts: Sequence[Any], asked: Mapping[str, Any], ranges: Ranges | None = None) -> np.ndarray:
    """Return the vectors that a request for them has to give, by the methods of the encoder alone.

    Int8 codes are computed here from their definition.
    """
    options = {key: asked[key] for key in ("prompt_name", "prompt", "num_layers") if key in asked}
    if asked.get("normalize") is not None:
        encoder = encoder.with_settings(normalize=asked["normalize"])
    side = asked.get("input_type") or asked.get("prompt_name")
    method = getattr(encoder, f"encode_{side}") if side in ("query", "document") else encoder.encode
    precision = asked.get("precision", "float32")
    codes = precision == "int8"
    found = method(
        list(texts), truncate_dim=asked.get("dimensions"), precision="float32" if codes else precision, **options
    )
    if not codes:
        return np.asarray(found)
    assert ranges is not None
    steps = np.round((found - np.array(ranges.minimum)) / np.array(ranges.step))
    return (np.clip(steps, 0, 255) - 128).astype(np.int8)


def check_same(given: np.ndarray, right: np.ndarray, asked: Mapping[str, Any], atol: float = 2e-6) -> None:
    """Fail unless vectors are the same: a code may be the next one, and one bit another, where values are between."""
    assert given.shape == right.shape and given.dtype == right.dtype, asked
    precision = asked.get("precision", "float32")
    if precision == "float32":
        difference = np.abs(given - right).max()
        assert difference <= atol * max(1, np.abs(right).max()), (asked, difference)  # rounding grows with the numbers
    elif precision == "int8":
        steps = np.abs(given.astype(int) - right)
        assert steps.max() <= 1 and steps.mean() < 0.05, (asked, given, right)
    else:
        bits = [np.unpackbits(each.view(np.uint8)) for each in (given, right)]
        assert (bits[0] != bits[1]).sum() <= 1, (asked, given, right)


def saved(encoder: Encoder, folder: Path) -> Path:
    """Save an encoder; return its folder."""
    encoder.save_pretrained(folder, verify="off")
    return folder
