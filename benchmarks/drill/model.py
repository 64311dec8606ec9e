"""The drill's language models: random weights of a known shape, with nano's tokenizer; no download."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import gpu
import torch
from ctkd import random_model
from models import nano_tokenizer

from drill import sizes
from drill.record import TOP
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.model.base import Base

COMPLETE = "complete"  # a file that is written last


def work() -> Path:
    """Return the folder for models and trained copies."""
    return TOP / "runs" / ("gpu-drill" if gpu.DEVICE == "cuda" else "gpu-drill-pretended")


def folder(shape: str = "0.6b") -> Path:
    """Return the folder of a model, which is made once."""
    now = sizes.now()
    place = work() / f"model-{shape}"
    if not (place / COMPLETE).is_file():
        random_model(now.config(shape), gpu.DEVICE, getattr(torch, now.dtype)).save_pretrained(place)
        nano_tokenizer().save_pretrained(place)
        (place / COMPLETE).touch()
        torch.cuda.empty_cache()
    return place


def encoder(shape: str, *, memory_tokens: int = 0, **settings: Any) -> Encoder:
    """Return an encoder of a model that is not written to disk."""
    now = sizes.now()
    backbone = Backbone(random_model(now.config(shape), gpu.DEVICE, getattr(torch, now.dtype)))
    if memory_tokens:
        backbone.add_memory(memory_tokens)
    return Encoder(backbone, nano_tokenizer(), Base("folder", "random"), **settings)


@cache
def words() -> list[str]:
    """Return words of one token each; few, so that a model soon learns how frequent each is."""
    vocabulary = nano_tokenizer().get_vocab()
    found = sorted(word[1:] for word in vocabulary if word[:1] == "Ġ" and word[1:].isascii() and word[1:].isalpha())
    return found[:: max(1, len(found) // 500)]


def texts(count: int, length: int, seed: int = 0) -> list[str]:
    """Return texts of a number of words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(words(), k=length)) for _ in range(count)]


def pair(text: str, seed: int) -> dict[str, str]:
    """Return a query, a positive with half of its words, and a negative."""
    draw = random.Random(seed)
    given = text.split()
    half = draw.sample(given, len(given) // 2)
    others = draw.choices(words(), k=len(given) - len(half))
    return {
        "query": text,
        "positive": " ".join(half + others),
        "negative": " ".join(draw.choices(words(), k=len(given))),
    }
