"""How texts are read for the model: what a request asks for, and the tokens that result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embrew.serving.errors import ApiError
from embrew.serving.schemas import Side

NOT_FINITE = "a NaN or infinite embedding; the model's weights are broken"


@dataclass(frozen=True)
class ReadOptions:
    """How the texts of a request are read.

    Attributes:
        side: whose prompt and length limit are used; None: those of `encode`.
        prompt_name: of a prompt or context.
        prompt: the words themselves; they take precedence.
        truncate: whether texts beyond the limit are truncated, or refused.
        num_layers: number of layers to run; None: all.
        states: the states of all tokens are wanted, and not one vector per text.
    """

    side: Side | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    truncate: bool = True
    num_layers: int | None = None
    states: bool = False


@dataclass(frozen=True)
class Key:
    """What texts must have in common to share a forward pass.

    Attributes:
        context: name of the context; None: there is none.
        prompt: words of a prompt whose keys and values are computed once; else "".
        num_layers: number of layers to run; None: all.
        states: whether the states of all tokens are wanted.
    """

    context: str | None = None
    prompt: str = ""
    num_layers: int | None = None
    states: bool = False


@dataclass(frozen=True)
class TokenizedTexts:
    """The texts of a request, tokenised.

    Attributes:
        key: what they share a forward pass with.
        rows: of each text, what the model takes.
        tokens: of each text: positions that the model reads.
        work: of each text: those of them that are computed for it alone.
    """

    key: Key
    rows: Sequence[Any]
    tokens: Sequence[int]
    work: Sequence[int]

    @classmethod
    def concatenate(cls, parts: Sequence[TokenizedTexts]) -> TokenizedTexts:
        """Return the texts of several parts of one request, which have the same key."""
        columns = ([one for part in parts for one in getattr(part, name)] for name in ("rows", "tokens", "work"))
        return cls(parts[0].key, *columns)


def check_lengths(lengths: Sequence[int], limit: int, first: int) -> None:
    """Raise if a text that must not be truncated is too long; `first` is the number of the first text."""
    for index, tokens in enumerate(lengths, first):
        if tokens > limit:
            message = f"text {index} has {tokens} tokens with its template and prompt; at most {limit} are allowed"
            message += ": shorten it, or set truncate to true"
            raise ApiError(422, message, param="input", code="text_too_long")


def check_finite(results: list[np.ndarray]) -> list[np.ndarray]:
    """Return results whose values are all finite.

    Raises:
        ValueError: one is not.
    """
    if not all(np.isfinite(result).all() for result in results):
        raise ValueError(NOT_FINITE)
    return results
