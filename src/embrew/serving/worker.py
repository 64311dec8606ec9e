"""Threads that take texts from the queue and have them computed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from embrew.serving.asked import Engine, Read
from embrew.serving.errors import ApiError
from embrew.serving.queueing import TRIES, Entry, Queue

logger = logging.getLogger(__name__)


class WorkerDied(Exception):
    """The process that computes has ended."""


class Worker(threading.Thread):
    """A thread that computes what waits in a queue, until this is closed and empty.

    Args:
        queue: what waits.
        engine: computes it.
        batch_tokens: tokens that are taken at one time.
        report: called with texts and seconds of every batch.
        known: a text that the engine can compute, to tell a text that it cannot compute from a broken engine.
        broken: called with the error of a broken engine.
    """

    def __init__(
        self,
        queue: Queue,
        engine: Engine,
        *,
        batch_tokens: int,
        known: Read,
        report: Callable[[Sequence[Entry], float], None],
        broken: Callable[[str], None],
    ) -> None:
        super().__init__(name="embrew-worker", daemon=True)
        self.queue, self.engine, self.batch_tokens = queue, engine, batch_tokens
        self.known, self.report, self.broken = known, report, broken

    def run(self) -> None:
        """Compute batches."""
        while (batch := self.queue.take(self.batch_tokens)) is not None:
            begun = time.monotonic()
            try:
                self._compute(batch)
            except WorkerDied as error:
                batch = self._again(batch, error)
            seconds = time.monotonic() - begun
            self.queue.done(batch, seconds)
            self.report(batch, seconds)

    def _compute(self, batch: Sequence[Entry]) -> None:
        """Compute texts that share a forward pass; a failing batch is halved until the failing text is alone."""
        alive = [entry for entry in batch if not entry.ticket.cancelled]
        if not alive:
            return
        begun = time.monotonic()
        try:
            results = self.engine.compute(alive[0].ticket.read.key, [entry.row for entry in alive])
        except WorkerDied:
            raise
        except Exception as error:
            logger.warning("computing %d texts failed: %s: %s", len(alive), type(error).__name__, error)
            if len(alive) == 1:
                if self._works():
                    self._fail(alive, f"{type(error).__name__}: {error}")
                return
            self._compute(alive[: len(alive) // 2])
            self._compute(alive[len(alive) // 2 :])
            return
        seconds = time.monotonic() - begun
        for ticket in {id(entry.ticket): entry.ticket for entry in alive}.values():
            ticket.computing += seconds
        for entry, result in zip(alive, results, strict=True):
            entry.ticket.finish(entry.place, result)

    def _again(self, batch: list[Entry], error: WorkerDied) -> list[Entry]:
        """Queue those texts again whose worker ended, each to be computed alone; return the others."""
        left = [entry for entry in batch if not entry.ticket.cancelled and entry.ticket.results[entry.place] is None]
        logger.warning("a worker ended while it computed %d texts: %s", len(left), error)
        if left and left[0].tries + 1 < TRIES:
            self.queue.put_back(left)
            return [entry for entry in batch if entry not in left]
        self._fail(left, "the process that computes ended twice")
        return batch

    def _works(self) -> bool:
        """Whether the engine still computes a text that it computed before."""
        try:
            self.engine.compute(self.known.key, self.known.rows)
        except WorkerDied:
            raise
        except Exception as error:
            self.broken(f"{type(error).__name__}: {error}")
            return False
        return True

    @staticmethod
    def _fail(entries: Sequence[Entry], why: str) -> None:
        for entry in entries:
            entry.ticket.fail(
                ApiError(422, f"text {entry.place} cannot be embedded: {why}", param="input", code="not_embedded")
            )
