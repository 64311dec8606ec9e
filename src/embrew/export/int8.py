"""Weights in int8: what an export is calibrated and compared on, and what it must keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embrew.text_encoder.interface import TextEncoder

MIN_COSINE = 0.99


@dataclass(frozen=True)
class Int8:
    """How the weights of a graph become int8.

    Attributes:
        texts: the user's texts. With any, activations are quantised too, by the ranges that they give; without, the
            weights are alone.
        min_cosine: smallest mean cosine to the encoder's vectors, over the reference texts and `texts`.
        score: returns an encoder's scores on the user's dev data, by task; None: none are wanted.
    """

    texts: tuple[str, ...] = ()
    min_cosine: float = MIN_COSINE
    score: Callable[[TextEncoder], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_cosine <= 1:
            raise ValueError(f"min_cosine={self.min_cosine}; give a cosine from 0 to 1")


def int8_card(found: Mapping[str, Any]) -> str:
    """Return what the card says of weights in int8.

    Args:
        found: `int8` of `parity.json`.
    """
    lines = [
        "## Weights in int8",
        f"Weights are int8, and activations {found['activations']}. On {found['texts']} texts, the cosine to the "
        f"encoder's vectors is {found['mean_cosine']:.4f} on average and {found['min_cosine']:.4f} at least.",
    ]
    if found["dev"]:
        rows = [
            f"| {name} | {score['encoder']:.4f} | {score['int8']:.4f} |" for name, score in sorted(found["dev"].items())
        ]
        lines.append("\n".join(["| score | encoder | int8 |", "|---|---:|---:|", *rows]))
    return "\n\n".join(lines)
