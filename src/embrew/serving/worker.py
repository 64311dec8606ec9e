"""Threads that take texts from the queue and have them computed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from embrew.serving.asked import Engine, Read, WorkerDied
from embrew.serving.errors import ApiError
from embrew.serving.queueing import Queue
from embrew.serving.tickets import Entry, Ticket

logger = logging.getLogger(__name__)


class EngineError(Exception):
    """An error of an engine in another process.

    Args:
        kind: the built-in class by which users see it.
        name: of its own class.
        message: of the error.
    """

    def __init__(self, kind: type[Exception], name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.kind, self.message = kind, message


class Worker(threading.Thread):
    """A thread that computes the texts of a queue until it is closed and empty.

    Args:
        queue: of texts that wait.
        engine: what computes them.
        batch_tokens: tokens that are taken at one time.
        known: a text that the engine can compute, to tell a text that it cannot compute from a broken engine.
        report: called with the computed texts of every batch, and its seconds.
        broken: called with the reason where the thread ends since the engine computes nothing any more.
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
        try:
            while (batch := self.queue.take(self.batch_tokens)) is not None:
                seconds = self._run(batch)
                self.queue.gather(self.batch_tokens, seconds)
        except WorkerDied as error:
            self.broken(str(error))
        except Exception as error:
            logger.exception("a worker ended")
            self.broken(_said(error))

    def _run(self, batch: list[Entry]) -> float:
        """Compute a batch; return the seconds. Where the engine ends meanwhile, each text is tried once more, alone."""
        begun, died = time.monotonic(), None
        try:
            self._compute(batch)
        except WorkerDied as error:
            logger.warning("a worker ended with %d texts: %s", len(batch), error)
            died = error
        seconds = time.monotonic() - begun
        computed = [entry for entry in batch if entry.ticket.results[entry.place] is not None]
        missing = [entry for entry in batch if entry.ticket.results[entry.place] is None]
        if died and (died.idle or not batch[0].again):
            self.queue.put_back(missing, alone=not died.idle)
            self.queue.done(computed, seconds)
        else:
            if died:
                self._fail(missing, "the process that computes ended twice")
            self.queue.done(batch, seconds)
        if computed:
            self.report(computed, seconds)
        if died:
            self._restart(died)
        return seconds

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
            logger.warning("computing %d texts failed: %s", len(alive), _said(error))
            if len(alive) == 1:
                self._check()
                self._fail(alive, _said(error))
            else:
                self._compute(alive[: len(alive) // 2])
                self._compute(alive[len(alive) // 2 :])
            return
        seconds = time.monotonic() - begun
        found: dict[Ticket, list[tuple[int, np.ndarray]]] = {}
        for entry, result in zip(alive, results, strict=True):
            found.setdefault(entry.ticket, []).append((entry.place, result))
        for ticket, of_ticket in found.items():
            ticket.finish(of_ticket, seconds)

    def _check(self) -> None:
        """Raise `WorkerDied` if the engine fails at a text, too, that it computed before."""
        try:
            self.engine.compute(self.known.key, self.known.rows)
        except WorkerDied:
            raise
        except Exception as error:
            raise WorkerDied(_said(error)) from error

    def _restart(self, died: WorkerDied) -> None:
        try:
            self.engine.restart()
        except WorkerDied as error:
            raise WorkerDied(f"{died}; {error}") from died

    @staticmethod
    def _fail(entries: Sequence[Entry], why: str) -> None:
        for entry in entries:
            entry.ticket.fail(
                ApiError(422, f"text {entry.place} cannot be embedded: {why}", param="input", code="not_embedded")
            )


class Workers:
    """One running worker per engine.

    Args:
        queue: of texts that wait.
        engines: what computes them.
        broken: called with the reason where all workers have ended.
        **given: as of `Worker`.
    """

    def __init__(self, queue: Queue, engines: Sequence[Engine], *, broken: Callable[[str], None], **given: Any) -> None:
        self.engines, self.broken = engines, broken
        self._threads = [Worker(queue, engine, broken=self._end, **given) for engine in engines]
        self._ended: list[str] = []
        self._closed = False
        for thread in self._threads:
            thread.start()

    def counts(self) -> dict[str, int]:
        """Return the sums of what engines count."""
        counts = [engine.counts() for engine in self.engines]
        return {name: sum(count[name] for count in counts) for name in counts[0]}

    def close(self, wait: float) -> bool:
        """End the engines, once the queue is closed; return whether the workers ended within `wait` seconds."""
        self._closed = True
        for engine in self.engines:
            engine.close()
        ends = time.monotonic() + wait
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _end(self, why: str) -> None:
        if self._closed:
            return
        self._ended.append(why)
        if len(self._ended) == len(self._threads):
            self.broken(why)
        else:
            logger.error("%d of %d workers ended: %s", len(self._ended), len(self._threads), why)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
