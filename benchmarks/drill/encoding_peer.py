"""Encoding beside Sentence-Transformers in float16, and prompts computed once beside prompts run for every text."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gpu
import harness
import numpy as np
import torch

from drill import model, sizes
from drill.measure import pairs
from drill.record import Result
from embrew.modeling.encoder import Encoder
from embrew.modeling.text.tokens import Tokens

CLOSE = 0.99  # smallest cosine of two sides in float16 and bfloat16


def beside() -> Result:
    """Encode texts of two lengths, ours in bfloat16 as by default, the peer in float16.

    The gate is on a peer with flash-attention, which leaves out padding; without the package it uses sdpa, and the
    ratios do not count.
    """
    now = sizes.now()
    place = model.folder()
    flash = find_spec("flash_attn") is not None and gpu.DEVICE == "cuda"
    peer = sentence_transformer(str(place), "flash_attention_2" if flash else "sdpa")
    settings: dict[str, Any] = {"pooling": "mean", "attention": "causal", "max_length": 512, "normalize": True}
    ours = Encoder.from_pretrained(place, device=gpu.DEVICE, dtype=now.dtype, template="{text}", **settings)
    rows = [
        texts_of_length(ours, peer, length, count)
        for length, count in zip(now.peer_lengths, now.peer_texts, strict=True)
    ]
    figures: dict[str, Any] = {}
    if flash or gpu.DEVICE != "cuda":
        figures = {f"ratio_{row['tokens']}": row["ratio"] for row in rows}
    figures |= {"peer's attention": "flash_attention_2" if flash else "sdpa", "by length": rows}
    if not flash:
        figures["gate_reason"] = "flash-attn is not installed; against sdpa, see the item"
    return {"figures": figures}


def texts_of_length(ours: Encoder, peer: Any, length: int, count: int) -> dict[str, Any]:
    """Time both sides on texts of about as many tokens, the peer with its best number of rows per batch.

    Raises:
        Unequal: vectors differ.
    """
    texts = model.texts(count, length - 2, seed=length)
    cosine = float((np.asarray(ours.encode(texts)) * np.asarray(peer.encode(texts))).sum(-1).min())
    if not cosine >= CLOSE:
        raise harness.Unequal(f"vectors of {length} tokens: smallest cosine {cosine:.4f}, {CLOSE} is required")
    best = min((16, 32, 64, 128), key=lambda size: gpu.seconds(lambda: peer.encode(texts, batch_size=size)))
    found = pairs(lambda: ours.encode(texts), lambda: peer.encode(texts, batch_size=best), sizes.now().rounds)
    return {"tokens": length, "texts": count, "smallest cosine": cosine, "peer's batch": best, **found}


def sentence_transformer(place: str, attention: str) -> Any:
    """Return Sentence-Transformers with the mean of the last states in float16 (float32 on the pretended device)."""
    from sentence_transformers import SentenceTransformer, models

    dtype = torch.float16 if gpu.DEVICE == "cuda" else torch.float32
    arguments = {"dtype": dtype, "attn_implementation": attention}
    body = models.Transformer(place, max_seq_length=512, model_kwargs=arguments)
    body.tokenizer.padding_side = "right"
    pooling = models.Pooling(body.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[body, pooling, models.Normalize()], device=gpu.DEVICE, trust_remote_code=False)


def prefix() -> Result:
    """Encode short texts behind a long prompt: computed once per call, against run for every text in padded batches."""
    now = sizes.now()
    built = model.encoder("0.6b", template="{instruction}{text}", attention="causal", pooling="mean", max_length=1024)
    built.prompts["long"] = " ".join(model.texts(1, now.prompt - 2)) + " "
    texts = model.texts(now.texts, now.text, seed=1)
    rows = max(1, now.batch_tokens // (now.prompt + now.text))
    once, every = _once(built, texts), _every(built, texts, rows)
    one, other = once(), every()
    cosine = float((one * other).sum(-1).min())
    figures = {**pairs(once, every, now.rounds), "smallest_cosine": cosine, "texts": len(texts)}
    return {"figures": figures, "checks": {"vectors agree": cosine >= CLOSE}}


def _once(built: Encoder, texts: list[str]) -> Callable[[], np.ndarray]:
    return lambda: np.asarray(built.encode(texts, prompt_name="long", normalize_embeddings=True))


def _every(built: Encoder, texts: list[str], rows: int) -> Callable[[], np.ndarray]:
    """Return the encoding of whole rows, prompt included, in padded batches by the same kernels."""

    def run() -> np.ndarray:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), rows):
                made = built.template.rows(texts[start : start + rows], instruction=built.prompts["long"])
                vectors = built(Tokens.pad(made).to(gpu.DEVICE))
                parts.append(torch.nn.functional.normalize(vectors.float(), dim=-1))
        return torch.cat(parts).cpu().numpy()

    return run
