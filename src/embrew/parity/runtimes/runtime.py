"""What the comparison needs of a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from embrew.parity.reference import Prompt


class Refused(ValueError):
    """A runtime refuses a text or a prompt, and says so; others may be given to it."""


class Runtime(Protocol):
    """Software that turns texts into vectors.

    Attributes:
        name: for users.
        by_words: whether a prompt can be put before a text as words.
        by_name: whether it has prompts of its own, which a request names.
        reads: names of the runtimes of `embrew export` whose files it may run.
    """

    name: str
    by_words: bool
    by_name: bool
    reads: tuple[str, ...]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors `(texts, dimensions)` of texts in one request, and apply no prompt that is not asked for.

        Raises:
            Refused: the runtime refuses one of the texts.
            ValueError: it gives no vectors; the message says why and what to do.
        """

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """Return vectors of texts with a prompt of the runtime.

        Raises:
            Refused: it has no prompt of this name.
            ValueError: it gives no vectors.
        """

    def token_ids(self, text: str) -> list[int] | None:
        """Return the token ids of a text with all that the runtime adds; None: it does not tell them."""


def checked(vectors: object, texts: Sequence[str], source: str) -> np.ndarray:
    """Return a runtime's vectors as float32 `(texts, dimensions)`.

    Raises:
        ValueError: there are more or fewer vectors than texts, they differ in dimensions, or one is not finite.
    """
    try:
        array = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"{source} gives vectors of different dimensions, or something that is no vector") from None
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"{source} gives an array of shape {array.shape} for {len(texts)} texts; one vector per text")
    if len(array) != len(texts):
        raise ValueError(f"{source} gives {len(array)} vectors for {len(texts)} texts")
    bad = ~np.isfinite(array).all(-1)
    if bad.any():
        raise ValueError(f"{source} gives a vector with NaN or infinity for {texts[int(bad.argmax())][:60]!r}")
    return array
