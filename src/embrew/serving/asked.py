"""What decides how the texts of a request are read and computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from embrew.serving.wire import Text

Side = Literal["query", "document"]


class WorkerDied(ChildProcessError):
    """What computes has ended.

    Attributes:
        idle: whether it ended before it received the texts, which are not the reason then.
    """

    def __init__(self, message: str, *, idle: bool = False) -> None:
        super().__init__(message)
        self.idle = idle


@dataclass(frozen=True)
class Asked:
    """How a request wants its texts to be read.

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
        prompt: words of a prompt that is long enough for its keys and values to be computed once; else "".
        num_layers: number of layers to run; None: all.
        states: whether the states of all tokens are wanted.
    """

    context: str | None = None
    prompt: str = ""
    num_layers: int | None = None
    states: bool = False


@dataclass(frozen=True)
class Read:
    """The texts of a request, tokenised.

    Attributes:
        key: what they share a forward pass with.
        rows: of each text, what the engine takes.
        tokens: of each text: positions that the model reads.
        work: of each text: those of them that are computed for it alone.
    """

    key: Key
    rows: Sequence[Any]
    tokens: Sequence[int]
    work: Sequence[int]

    @classmethod
    def joined(cls, parts: Sequence[Read]) -> Read:
        """Return the texts of several parts of one request as one; they share the forward passes of the first."""
        columns = ([one for part in parts for one in getattr(part, name)] for name in ("rows", "tokens", "work"))
        return cls(parts[0].key, *columns)


class Reader(Protocol):
    """The text side of a model: it holds no weights, and can be copied and sent to another process."""

    @property
    def about(self) -> dict[str, Any]:
        """The model, for `/info`: prompts, contexts, dimensions, num_layers, limits and so on."""

    def read(self, texts: list[Text], asked: Asked, *, first: int = 0) -> Read:
        """Return texts as the engine takes them; `first` is the number of the first one, for error messages.

        Raises:
            ApiError: they cannot be read so.
        """

    def tokenize(self, text: Text, asked: Asked, *, add_special_tokens: bool) -> list[dict[str, Any]]:
        """Return the tokens of a text, as `wire.Token`.

        Raises:
            ApiError: it cannot be read so.
        """


class Engine(Protocol):
    """The side of a model that computes."""

    def compute(self, key: Key, rows: Sequence[Any]) -> list[np.ndarray]:
        """Return the result for each text: float32 `(templates, dimensions)`, or states `(tokens, hidden)`.

        Raises:
            WorkerDied: the process that computes ended.
            Exception: these texts cannot be computed.
        """

    def counts(self) -> dict[str, int]:
        """Return `prefix_hits`, `prefix_misses` and `prefix_bytes` so far."""

    def restart(self) -> None:
        """Start the process that computes again, after it has ended.

        Raises:
            WorkerDied: that is not possible.
        """
        raise WorkerDied("only a new process computes again")

    def close(self) -> None:
        """End the process that computes, where there is one."""
        return
