"""The service behind the routes: opens the model, reads texts, queues them, and waits for their results."""

from __future__ import annotations

import asyncio
import copy
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from embrew.serving.asked import Asked, Engine, Reader
from embrew.serving.errors import ApiError, too_many_texts
from embrew.serving.metrics import Metrics
from embrew.serving.opening import BATCH_TOKENS, open_served
from embrew.serving.processes import open_in_processes
from embrew.serving.queueing import Queue, Ticket, ticket_of
from embrew.serving.settings import Settings
from embrew.serving.wire import Text
from embrew.serving.worker import Worker

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
BATCHES = 16  # that may wait by default


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


class Service:
    """A model that is served.

    Attributes:
        state: `loading`, `ready`, `draining` or `broken`.
        failure: why the model could not be opened.
        why: what a broken service answers.
        created: when the service began, in seconds since 1970.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.state: Literal["loading", "ready", "draining", "broken"] = "loading"
        self.failure: Exception | None = None
        self.created = int(time.time())
        self.batch_tokens = settings.batch_tokens or BATCH_TOKENS["cpu"]
        self.queue = Queue(settings.limits.queued_tokens or BATCHES * self.batch_tokens)
        self.metrics = Metrics(self.queue)
        self.reader: Reader | None = None
        self.why = ""
        self._readers: queue.SimpleQueue[Reader] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(settings.tokenizers, thread_name_prefix="embrew-tokenizer")
        self._engines: Sequence[Engine] = ()
        self._tickets: set[Ticket] = set()

    def load(self) -> None:
        """Open the model and start the workers; an error is kept in `failure`."""
        try:
            if self.settings.workers > 1 or len(self.settings.devices) > 1:
                served, self._engines = open_in_processes(self.settings)
            else:
                served = open_served(self.settings, *self.settings.devices)
                self._engines = [served.engine]
        except Exception as error:
            self.failure = error
            self.state, self.why = "broken", f"the model cannot be opened: {error}"
            return
        self.reader, self.batch_tokens = served.reader, served.batch_tokens
        self.queue.most = self.limits.queued_tokens or BATCHES * served.batch_tokens
        for _ in range(self.settings.tokenizers):
            self._readers.put(copy.deepcopy(served.reader))
        self.metrics.show_counts(self._counts)
        for engine in self._engines:
            Worker(
                self.queue,
                engine,
                batch_tokens=served.batch_tokens,
                known=served.known,
                report=lambda batch, seconds: self.metrics.batch(batch, seconds, self.batch_tokens),
                broken=self._break,
            ).start()
        if self.state == "loading":
            self.state = "ready"
            logger.info("%s is ready", self.settings.names[0])

    def load_in_thread(self, done: Callable[[], None] = lambda: None) -> None:
        """Open the model while the server answers already; `done` is called at the end."""

        def run() -> None:
            self.load()
            done()

        threading.Thread(target=run, name="embrew-loader", daemon=True).start()

    def drain(self) -> None:
        """Accept no further requests; those that are not finished after `limits.drain` seconds get 503."""
        if self.state == "draining":
            return
        self.state = "draining"
        error = ApiError(503, "the server stops", code="draining", retry_after=5)
        timer = threading.Timer(self.limits.drain, self._fail_all, (error,))
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Let the workers end."""
        self.state = "draining"
        self.queue.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for engine in self._engines:
            getattr(engine, "close", lambda: None)()

    def ready(self) -> Reader:
        """Return the text side of the model.

        Raises:
            ApiError: 503: it is being opened, the server stops, or nothing can be computed any more.
        """
        if self.state == "ready" and self.reader is not None:
            return self.reader
        said = {"loading": "the model is being loaded", "draining": "the server stops"}.get(self.state, self.why)
        raise ApiError(503, f"{said}; try again later", code=self.state, retry_after=5)

    async def in_pool(self, work: Callable[[Reader], Result]) -> Result:
        """Return what a function makes of the model's text side, in a thread that tokenises."""

        def run() -> Result:
            reader = self._readers.get()
            try:
                return work(reader)
            finally:
                self._readers.put(reader)

        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    async def compute(self, texts: list[Text], asked: Asked) -> Computed:
        """Read texts, queue them, and wait until they are computed.

        Raises:
            ApiError: they cannot be read or computed, too many wait, or it took too long.
        """
        self.ready()
        if len(texts) > self.limits.items:
            raise too_many_texts(len(texts), self.limits.items)
        begun = time.monotonic()
        read = await self.in_pool(lambda reader: reader.read(texts, asked))
        ticket, ended = ticket_of(read)
        self.queue.put(ticket)
        self._tickets.add(ticket)
        try:
            await asyncio.wait_for(ended.wait(), self.limits.timeout)
        except TimeoutError:
            raise ApiError(
                503,
                f"not computed within {self.limits.timeout:g} seconds",
                code="timeout",
                retry_after=self.queue.expected(),
            ) from None
        finally:
            ticket.cancelled = True  # nobody waits any more: what is left, where the client has gone, is dropped
            self._tickets.discard(ticket)
        if ticket.error is not None:
            raise ticket.error
        waited = (ticket.started or ticket.arrived) - ticket.arrived
        self.metrics.waiting.observe(waited)
        results: Any = ticket.results
        tokens = sum(read.tokens)
        times = {
            "x-tokenization-time": ticket.arrived - begun,
            "x-queue-time": waited,
            "x-inference-time": ticket.computing,
        }
        headers = {name: f"{1000 * value:.1f}" for name, value in times.items()}
        return Computed(results, tokens, {**headers, "x-compute-tokens": str(tokens)})

    def _counts(self) -> dict[str, int]:
        counts = [engine.counts() for engine in self._engines]
        return {name: sum(count[name] for count in counts) for name in counts[0]}

    def _break(self, why: str) -> None:
        """Refuse everything from now on: nothing can be computed."""
        logger.error("the server no longer computes: %s", why)
        self.state, self.why = "broken", f"the model computes nothing: {why}"
        self._fail_all(ApiError(503, self.why, code="broken", retry_after=30))

    def _fail_all(self, error: ApiError) -> None:
        for ticket in list(self._tickets):
            ticket.fail(error)
