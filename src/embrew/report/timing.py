"""Time to encode a text, beside the time of a fixed computation, so that encoders can be timed one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.text_encoder.interface import encode_options

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder.interface import TextEncoder

TEXTS = 64  # encoded per round
ROUNDS = 5
SIZE, PRODUCTS = 512, 8  # of the fixed computation: products of two SIZE × SIZE matrices in float32


def time_encoder(encoder: TextEncoder, texts: Sequence[str]) -> dict[str, list[float]]:
    """Return the seconds of each round: encoding all texts as documents, and the fixed computation before and after.

    The encoder runs once before the first round.
    """
    encode = partial(encoder.encode_document, list(texts), **encode_options(encoder))
    fixed = partial(_fixed, getattr(encoder, "device", None))
    encode()
    found: dict[str, list[float]] = {"encoder": [], "fixed": []}
    for _ in range(ROUNDS):
        before = _seconds(fixed)
        found["encoder"].append(_seconds(encode))
        found["fixed"].append((before + _seconds(fixed)) / 2)
    return found


def milliseconds(timed: Mapping[str, Mapping[str, Sequence[float]]], texts: int) -> dict[str, float]:
    """Return each model's time per text as it would be if the fixed computation had always taken its median time.

    Args:
        timed: What `time_encoder` returned, by model.
        texts: Number of texts per round.
    """
    if not timed:
        return {}
    common = float(np.median(list(chain.from_iterable(one["fixed"] for one in timed.values()))))
    return {
        name: 1000 * common * float(np.median(np.divide(one["encoder"], one["fixed"]))) / texts
        for name, one in timed.items()
    }


def sample(data: Mapping[Any, Task], *, most: int = TEXTS) -> list[str]:
    """Return texts of the tasks, equally many of each, without empty ones; documents where a task has them."""
    from embrew.evaluation.task_texts import task_texts

    each = max(1, most // max(1, len(data)))
    found: list[str] = []
    for task in data.values():
        *_, (_, texts) = task_texts(task)
        found += islice((text for text in texts if text.strip()), each)
    return found


def _fixed(device: Any) -> None:
    import torch

    matrix = torch.eye(SIZE, device=device)
    for _ in range(PRODUCTS):
        matrix = matrix @ matrix
    matrix.sum().item()  # waits for the device


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
