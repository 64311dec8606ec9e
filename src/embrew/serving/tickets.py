"""The texts of a request on their way from the queue to the workers and back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from embrew.serving.asked import Read
from embrew.serving.errors import ApiError


class Ticket:
    """The texts of one request. Several workers may compute them at one time.

    Attributes:
        read: the texts, tokenised.
        arrived: when they were queued, in seconds of `time.monotonic`.
        started: when the first of them was taken; None: not yet.
        computing: seconds of the forward passes that they were part of.
        results: per text, what the engine returned.
        error: why they could not be computed.
        cancelled: whether the client has gone, or got an error.
    """

    def __init__(self, read: Read, done: Callable[[], None]) -> None:
        self.read, self._done = read, done
        self.arrived = time.monotonic()
        self.started: float | None = None
        self.computing = 0.0
        self.results: list[np.ndarray | None] = [None] * len(read.rows)
        self.error: ApiError | None = None
        self.cancelled = False
        self._left = len(read.rows)
        self._lock = threading.Lock()

    def finish(self, results: Iterable[tuple[int, np.ndarray]], seconds: float) -> None:
        """Store results of texts by their places, from one forward pass; the last one ends the waiting."""
        with self._lock:
            self.computing += seconds
            for place, result in results:
                self.results[place] = result
                self._left -= 1
            if self._left or self.cancelled:
                return
        self._done()

    def times(self, begun: float) -> dict[str, float]:
        """Return the seconds of tokenising, which began at `begun`, of waiting, and of computing."""
        waited = (self.started or self.arrived) - self.arrived
        return {"tokenization": self.arrived - begun, "queue": waited, "inference": self.computing}

    def fail(self, error: ApiError) -> None:
        """End the waiting with an error, unless it has ended."""
        with self._lock:
            if self.cancelled or not self._left:
                return
            self.error, self.cancelled = error, True
        self._done()


class Entry(NamedTuple):
    """One text of a request in the queue.

    Attributes:
        ticket: of the request.
        place: of the text among those of the request.
        again: whether it is computed once more, alone, since its worker ended.
    """

    ticket: Ticket
    place: int
    again: bool = False

    @property
    def row(self) -> Any:
        """What the engine takes."""
        return self.ticket.read.rows[self.place]

    @property
    def work(self) -> int:
        """Tokens that are computed for it."""
        return self.ticket.read.work[self.place]


class Computed(NamedTuple):
    """The texts of a request, computed.

    Attributes:
        results: per text, what the engine returned.
        tokens: positions that the model read.
        headers: times in milliseconds, as headers of the answer.
    """

    results: Sequence[np.ndarray]
    tokens: int
    headers: dict[str, str]


def ticket_of(read: Read) -> tuple[Ticket, asyncio.Event]:
    """Return a ticket, and the event of the running loop that its end sets; workers end it from their threads."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def done() -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it the request
            loop.call_soon_threadsafe(ended.set)

    return Ticket(read, done), ended
