"""Texts that wait to be computed, in the order of their requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from embrew.serving.asked import Key, Read
from embrew.serving.errors import ApiError

TRIES = 2  # of a text whose worker ended while it was computed


class Ticket:
    """The texts of one request.

    Attributes:
        read: they, tokenised.
        arrived: when they were queued, in seconds of `time.monotonic`.
        started: when the first of them was taken; None: not yet.
        computing: seconds of the forward passes that they were part of.
        results: per text, what the engine returned.
        cancelled: whether nobody waits for them any more.
    """

    def __init__(self, read: Read, done: Callable[[], None]) -> None:
        self.read, self._done = read, done
        self.arrived = time.monotonic()
        self.started: float | None = None
        self.computing = 0.0
        self.results: list[np.ndarray | None] = [None] * len(read.rows)
        self.error: ApiError | None = None
        self.cancelled = False
        self.left = len(read.rows)

    def finish(self, place: int, result: np.ndarray) -> None:
        """Store the result of a text; the last one ends the waiting."""
        self.results[place] = result
        self.left -= 1
        if not self.left:
            self._done()

    def fail(self, error: ApiError) -> None:
        """End the waiting with an error; texts of this request that still wait are dropped."""
        if self.error is None and self.left:
            self.error, self.cancelled = error, True
            self._done()


class Entry(NamedTuple):
    """One text of a request in the queue."""

    ticket: Ticket
    place: int
    tries: int = 0

    @property
    def row(self) -> Any:
        """What the engine takes."""
        return self.ticket.read.rows[self.place]

    @property
    def work(self) -> int:
        """Tokens that are computed for it."""
        return self.ticket.read.work[self.place]


class Queue:
    """Texts by what they share a forward pass with; the oldest decides which go next.

    Args:
        most: tokens that may wait or be computed; more are refused, unless none wait.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.tokens = self.texts = self.dropped = 0
        self.speed = 0.0  # tokens per second, lately
        self._waiting: dict[Key, deque[Entry]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, ticket: Ticket) -> None:
        """Append the texts of a request.

        Raises:
            ApiError: too many tokens wait.
        """
        work = sum(ticket.read.work)
        with self._changed:
            if self.tokens and self.tokens + work > self.most:
                raise ApiError(
                    429,
                    f"{self.tokens} tokens wait to be computed, and at most {self.most} may; try again later",
                    code="queue_full",
                    retry_after=self.expected(),
                )
            self.tokens += work
            self.texts += len(ticket.read.rows)
            entries = [Entry(ticket, place) for place in range(len(ticket.read.rows))]
            self._waiting.setdefault(ticket.read.key, deque()).extend(entries)
            self._changed.notify()

    def expected(self) -> float:
        """Return the seconds until what waits now is computed, from 1 to 60."""
        return min(60.0, max(1.0, self.tokens / self.speed if self.speed else 1.0))

    def take(self, most: int) -> list[Entry] | None:
        """Return the oldest text and others that share its forward pass, in order; wait where there is none.

        Args:
            most: tokens of all together; a longer text goes alone.

        Returns:
            None: the queue is closed, and empty.
        """
        with self._changed:
            while True:
                self._drop_cancelled()
                heads = [(waiting[0].ticket.arrived, key) for key, waiting in self._waiting.items()]
                if heads:
                    return self._fill(self._waiting[min(heads, key=lambda head: head[0])[1]], most)
                if self._closed:
                    return None
                self._changed.wait()

    def done(self, entries: Sequence[Entry], seconds: float) -> None:
        """Count texts as computed, after that many seconds."""
        work = sum(entry.work for entry in entries)
        with self._changed:
            self.tokens -= work
            self.texts -= len(entries)
            if seconds > 0:
                self.speed = work / seconds if not self.speed else 0.8 * self.speed + 0.2 * work / seconds

    def put_back(self, entries: Sequence[Entry]) -> None:
        """Put texts first again, each to be computed alone, which were not computed since their worker ended."""
        with self._changed:
            for entry in reversed(entries):
                again = entry._replace(tries=entry.tries + 1)
                self._waiting.setdefault(entry.ticket.read.key, deque()).appendleft(again)
            self._changed.notify()

    def close(self) -> None:
        """Let `take` end once all is computed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _drop_cancelled(self) -> None:
        for key, waiting in list(self._waiting.items()):
            while waiting and waiting[0].ticket.cancelled:
                self._drop(waiting.popleft())
            if not waiting:
                del self._waiting[key]

    def _drop(self, entry: Entry) -> None:
        self.tokens -= entry.work
        self.texts -= 1
        self.dropped += 1

    def _fill(self, waiting: deque[Entry], most: int) -> list[Entry]:
        """Take from the left until the tokens are used up. Texts whose worker ended before go alone."""
        taken, tokens = [waiting.popleft()], 0
        tokens = taken[0].work
        while waiting and not taken[0].tries and not waiting[0].tries:
            if waiting[0].ticket.cancelled:
                self._drop(waiting.popleft())
                continue
            if tokens + waiting[0].work > most:
                break
            taken.append(waiting.popleft())
            tokens += taken[-1].work
        now = time.monotonic()
        for entry in taken:
            entry.ticket.started = entry.ticket.started or now
        return taken


def ticket_of(read: Read) -> tuple[Ticket, asyncio.Event]:
    """Return a ticket, and the event of the running loop that its end sets; workers end it from their threads."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def done() -> None:
        loop.call_soon_threadsafe(ended.set)

    return Ticket(read, done), ended
