"""Texts and model of the benchmarks of encoding."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import harness
import numpy as np
import torch
from harness import SEED
from models import save_llama
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.storage.base_model import ASSETS

TEXTS = 128
CORPUS = 160_000
BATCH_TOKENS = 2_048  # what `encode_corpus` takes on a CPU
EQUAL = 2e-6  # largest difference of a component of unit vectors
COSINE = 0.9998
SETTING = "6-layer Llama of width 384, one core"

Lengths = Callable[[np.random.Generator], np.ndarray]
LENGTHS: dict[str, Lengths] = {
    "short": lambda r: r.integers(4, 20, 8 * TEXTS),
    "lognormal": lambda r: np.clip(r.lognormal(4, 1, TEXTS), 2, 500).astype(int),
}


# ---- one model on both sides ---------------------------------------------------------------------------------------


@cache
def folder() -> Path:
    """6 random Llama layers of width 384 with nano's tokenizer (`model`), and their stock export (`stock`)."""
    place = Path(tempfile.mkdtemp(prefix="embrew-bench-"))
    save_llama(place / "model", width=384, inner=1024, layers=6, heads=6)
    export_encoder(encoder(place), place / "stock", verify="off")
    return place


def encoder(place: Path | None = None, dtype: str = "float32") -> Encoder:
    """Ours."""
    return Encoder.from_pretrained(
        (place or folder()) / "model", dtype=dtype, device="cpu", pooling="mean", attention="causal", max_length=512
    )


def stock(dtype: str = "float32") -> SentenceTransformer:
    """The peer: the exported folder, as anybody opens it."""
    return SentenceTransformer(
        str(folder() / "stock"),
        device="cpu",
        trust_remote_code=False,
        model_kwargs={"use_safetensors": True, "dtype": getattr(torch, dtype)},
    )


def texts_of(name: str) -> list[str]:
    """Texts of one token a word, of random lengths."""
    vocabulary = AutoTokenizer.from_pretrained(ASSETS["nano"], trust_remote_code=False).get_vocab()
    words = sorted(word[1:] for word in vocabulary if word[:1] == "Ġ" and word[1:].isascii() and word[1:].isalpha())
    generator = random.Random(SEED)
    return [" ".join(generator.choices(words, k=int(n))) for n in LENGTHS[name](np.random.default_rng(SEED))]


def require_same_vectors(ours: np.ndarray, peer: np.ndarray) -> float:
    """Largest absolute difference of a component."""
    gap = float(np.abs(ours - peer).max())
    if ours.shape != peer.shape or not gap <= EQUAL:
        raise harness.Unequal(f"vectors differ by {gap:.1e}, {EQUAL:.0e} is allowed")
    return gap
