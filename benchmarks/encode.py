"""Encoding: the texts and the model of its benchmarks, and what batches and shards cost besides the model."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peaks
import torch
from harness import SEED, Bar, Benchmark, Measure, Outcome
from models import save_llama
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from embrew.corpus import encode_corpus, read_vectors
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.model.attention import Attention
from embrew.storage.base_model import ASSETS
from embrew.text.tokens import Row, Segment, Tokens

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


# ---- what Python does for each text --------------------------------------------------------------------------------


def corpus_texts(count: int) -> list[str]:
    """Short texts that all differ."""
    generator = random.Random(SEED)
    words = texts_of("lognormal")[0].split() + texts_of("lognormal")[1].split()
    return [f"{' '.join(generator.choices(words, k=6))} {i}" for i in range(count)]


def stub_vectors(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """In place of a model: unit vectors, chosen by the tokens."""
    return stub_table()[(ids * mask).sum(-1) % 4096]


@cache
def stub_table() -> torch.Tensor:
    """4,096 random ones."""
    table = torch.randn(4096, 384, generator=torch.Generator().manual_seed(SEED))
    return torch.nn.functional.normalize(table, dim=-1)


def stub_ours(count: int) -> Callable[[], np.ndarray]:
    """Our `encode` around the stub."""
    ours, texts = encoder().with_settings(normalize=False), corpus_texts(count)
    ours.forward = lambda tokens, **_: stub_vectors(tokens.input_ids, tokens.attention_mask)  # type: ignore[method-assign]
    return partial(ours.encode, texts, batch_tokens=BATCH_TOKENS)


def stub_peer(count: int) -> Callable[[], np.ndarray]:
    """Sentence-Transformers' around it."""
    peer, texts = stock(), corpus_texts(count)

    def forward(features: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {"sentence_embedding": stub_vectors(features["input_ids"], features["attention_mask"])}

    peer.forward = forward  # type: ignore[method-assign, assignment]
    return partial(peer.encode, texts)


def stub_memory(build: Callable[[int], Callable[[], np.ndarray]], count: int) -> Callable[[], dict[str, float]]:
    """One side alone, for a process of its own."""
    step = build(count)

    def run() -> dict[str, float]:
        return {"sum": float(step().sum(dtype=np.float64))}

    return run


def overhead(benchmark: Benchmark, *, count: int) -> Outcome:
    """Time a text and growth of memory, tokenising included."""
    own, theirs = stub_ours(count), stub_peer(count)
    equality = {"vectors in order, largest difference": require_same_vectors(own(), theirs())}
    measure = harness.time_pairs(f"time of {count:,} texts", own, theirs, Bar(gate=1.5, target=2), unit="s")
    found = peaks.memory_of(benchmark)
    harness.require_equal("sums", [(found["ours"]["sum"], found["peer"]["sum"])], 1e-6)
    grew, bar = [found[side]["grew"] for side in ("ours", "peer")], Bar(gate=1.4, target=1.8)
    growth = Measure.of("growth of peak memory in 3 rounds", "MB", *grew, bar)
    notes = {
        f"us a text, {who}": 1e6 * seconds / count for who, seconds in (("ours", measure.ours), ("peer", measure.peer))
    }
    return Outcome(
        equality=equality, measures=[measure, growth], notes={**notes, "MB of vectors": count * 384 * 4 / 2**20}
    )


# ---- right padding without a mask ----------------------------------------------------------------------------------


def causal(benchmark: Benchmark, *, width: int) -> Outcome:
    """Rows of nearly one length, last-token vectors: ours, and padded on the left with a mask as is usual."""
    backbone = encoder().backbone
    generator = torch.Generator().manual_seed(SEED)
    lengths = [width, width - 12, width - 25, width - 40]
    rows = [torch.randint(3, backbone.vocab_size, (n,), generator=generator).tolist() for n in lengths]
    tokens = Tokens.pad([Row.labelled(row, Segment.TEXT) for row in rows])
    left = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    places = (mask.cumsum(-1) - 1).clamp(min=0)

    @torch.inference_mode()
    def own() -> torch.Tensor:
        states = backbone.hidden_states(tokens, Attention("causal"))
        return states[torch.arange(len(rows)), torch.tensor(lengths) - 1]

    @torch.inference_mode()
    def theirs() -> torch.Tensor:
        inner = backbone.inner
        return inner(input_ids=left, attention_mask=mask, position_ids=places, use_cache=False).last_hidden_state[:, -1]

    equality = {"last states, relative": harness.require_equal("last states", [(own(), theirs())], 1e-5)}
    return Outcome(
        equality=equality, measures=[harness.time_pairs("time", own, theirs, Bar(gate=1.0, target=1.15))], notes={}
    )


# ---- smaller vectors on disk ---------------------------------------------------------------------------------------


def precision(benchmark: Benchmark) -> Outcome:
    """Whole runs of `encode_corpus`, and what they leave on disk."""
    ours, texts = encoder(), texts_of("short")
    place = Path(tempfile.mkdtemp(prefix="embrew-bench-"))
    (place / "corpus.txt").write_text("\n".join(texts))

    def run(how: str) -> None:
        shutil.rmtree(place / how, ignore_errors=True)
        encode_corpus(ours, place / "corpus.txt", place / how, precision=how)

    equality, measures, notes = {}, [], {}
    exact = ours.encode_document(texts, batch_tokens=BATCH_TOKENS)
    for how, smaller in (("float32", 1), ("int8", 4), ("binary", 32)):
        run(how)
        vectors = read_vectors(place / how)
        gap = np.abs(vectors.load()[1] - (np.where(exact > 0, 1, -1) if how == "binary" else exact))
        allowed = np.array(vectors.ranges.step) / 2 + EQUAL if vectors.ranges else EQUAL
        if not (gap <= allowed).all():
            raise harness.Unequal(f"{how}: de-quantised vectors are further off than allowed")
        equality[f"{how}, largest difference"] = float(gap.max())
        stored = sum(codes.nbytes for _, codes in vectors)
        notes[f"MB of files, {how}"] = sum(file.stat().st_size for file in (place / how).glob("part-*")) / 1e6
        if smaller > 1:
            bar = Bar(gate=smaller, target=smaller)
            measures.append(Measure.of(f"bytes, {how}", "bytes", stored, exact.nbytes, bar))
            bar = Bar(gate=1 / 1.08, target=1 / 1.03)
            measures.append(
                harness.time_pairs(f"time, {how}", partial(run, how), partial(run, "float32"), bar, unit="s")
            )
    shutil.rmtree(place)
    return Outcome(equality=equality, measures=measures, notes=notes)


BENCHMARKS = (
    Benchmark(
        name="encode-overhead",
        title=f"What Python does for each of {CORPUS:,} short texts: Sentence-Transformers and ours around a stub.",
        run=partial(overhead, count=CORPUS),
        variants={
            "ours": partial(stub_memory, stub_ours, CORPUS),
            "peer": partial(stub_memory, stub_peer, CORPUS),
        },
    ),
    Benchmark(
        name="encode-causal",
        title=f"Causal rows of about 1,024 tokens, padding on the left with a mask or on the right without: {SETTING}.",
        run=partial(causal, width=1024),
    ),
    Benchmark(
        name="encode-precision",
        title=f"Shards of int8 and binary codes against float32: bytes and time of whole runs; {SETTING}.",
        run=precision,
    ),
)
