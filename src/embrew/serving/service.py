"""The service behind the routes: opens the model, reads texts, queues them, and waits for their results."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np

from embrew.serving.asked import Asked, Read
from embrew.serving.errors import ApiError, stopping, too_many_characters, too_many_states, too_many_texts
from embrew.serving.metrics import Metrics
from embrew.serving.opening import ON_CPU, open_served
from embrew.serving.processes import open_in_processes
from embrew.serving.queueing import Queue
from embrew.serving.settings import Settings
from embrew.serving.tickets import Computed, Ticket, ticket_of
from embrew.serving.tokenizing import TokenizerPool
from embrew.serving.wire import Text
from embrew.serving.worker import Workers

logger = logging.getLogger(__name__)
BATCHES = 16  # that may wait by default
CHARACTERS, PER_TOKEN = 100_000, 8  # of a text, by default: that many, or more per token of the longest limit
TYPICAL = 4  # characters per token, to estimate tokens before texts are tokenised
LATE = 2.0  # seconds for the answers of requests that were not finished when the server stopped


class Service:
    """A model that is served.

    Attributes:
        failure: why the model could not be opened.
        why: what a broken service answers; else empty.
        created: when the service began, in seconds since 1970.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.failure: Exception | None = None
        self.created = int(time.time())
        self.batch_tokens = settings.batch_tokens or ON_CPU
        self.queue = Queue(settings.limits.queued_tokens or BATCHES * self.batch_tokens)
        self.metrics = Metrics(self.queue, lambda: self._workers.counts() if self._workers else {})
        self._about: dict[str, Any] | None = None
        self.in_pool = TokenizerPool(settings.tokenizers)
        self.why = ""
        self._stops: float | None = None  # when requests that are not finished get 503
        self._loader: threading.Thread | None = None
        self._workers: Workers | None = None
        self._tickets: set[Ticket] = set()

    @property
    def state(self) -> Literal["loading", "ready", "draining", "broken"]:
        """State of the service."""
        if self._stops is not None:
            return "draining"
        return "broken" if self.why else "loading" if self._about is None else "ready"

    def load(self) -> None:
        """Open the model and start the workers; an error is kept in `failure`."""
        try:
            if self.settings.workers > 1:
                served, engines = open_in_processes(self.settings)
            else:
                served = open_served(self.settings, *self.settings.devices)
                engines = (served.engine,)
        except Exception as error:
            self.failure, self.why = error, f"the model cannot be opened: {error}"
            return
        self.batch_tokens = served.batch_tokens
        self.queue.most = self.limits.queued_tokens or BATCHES * served.batch_tokens
        self.in_pool.open(served.reader)
        self._workers = Workers(
            self.queue,
            engines,
            batch_tokens=served.batch_tokens,
            known=served.known,
            report=lambda batch, seconds: self.metrics.batch(batch, seconds, self.batch_tokens),
            broken=self._break,
        )
        self._about = served.reader.about
        if self.state == "ready":
            logger.info("%s is ready", self.settings.names[0])

    def load_in_thread(self, done: Callable[[], None] = lambda: None) -> None:
        """Open the model while the server answers already; `done` is called at the end."""

        def run() -> None:
            self.load()
            done()

        self._loader = threading.Thread(target=run, name="embrew-loader", daemon=True)
        self._loader.start()

    def drain(self) -> None:
        """Accept no further requests; may be called in a signal handler."""
        self._stops = self._stops or time.monotonic() + self.limits.drain

    def drained(self) -> bool:
        """Whether requests are refused and all others are answered; after `limits.drain` seconds they get 503."""
        if self._stops is None:
            return False
        late = time.monotonic() - self._stops
        if late > 0:
            self._fail_all(stopping())
        return late > LATE or not (self._tickets or self.in_pool.running or self.queue.expecting)

    def close(self, wait: float = 0.0) -> bool:
        """End the workers; return whether all threads but those that tokenise have ended within `wait` seconds."""
        self.drain()
        self.queue.close()
        self.in_pool.close()
        loading = self._loader is not None and self._loader.is_alive()
        return not loading and (self._workers is None or self._workers.close(wait))

    def ready(self) -> dict[str, Any]:
        """Return the description of the model.

        Raises:
            ApiError: 503: it is being opened, the server stops, or nothing can be computed any more.
        """
        if self.state == "ready" and self._about is not None:
            return self._about
        raise self._refusal()

    @property
    def characters(self) -> int:
        """Characters (or token ids) that a text may have."""
        return self.limits.characters or max(CHARACTERS, PER_TOKEN * (self.ready()["max_length"]["other"] or 0))

    def check_size(self, texts: list[Text], asked: Asked) -> None:
        """Refuse texts whose tokenising alone would hold up other requests.

        Raises:
            ApiError: 413: too many texts, or too many characters in one of them or in the prompt; 503: not ready.
        """
        most = self.characters
        if len(texts) > self.limits.items:
            raise too_many_texts(len(texts), self.limits.items)
        for place, text in enumerate(texts):
            if len(text) > most:
                raise too_many_characters(f"text {place}", text, most)
        if len(asked.prompt or "") > most:
            raise too_many_characters("prompt", asked.prompt or "", most)

    def _estimate(self, texts: list[Text], asked: Asked) -> int:
        """Return about how many tokens texts will have, which are not tokenised yet."""
        limit = self.ready()["max_length"][asked.side or "other"] or self.queue.most
        counts = (1 + len(text) // (TYPICAL if isinstance(text, str) else 1) for text in texts)
        return sum(min(count, limit) for count in counts)

    async def compute(self, texts: list[Text], asked: Asked) -> Computed:
        """Read texts, queue them, and wait until they are computed.

        Raises:
            ApiError: they cannot be read or computed, too many wait, or it took too long.
        """
        self.check_size(texts, asked)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self.limits.timeout):
                with self.queue.expects(self._estimate(texts, asked)):
                    read = await self.in_pool.read(texts, asked)
                if asked.states and len(texts) > 1 and sum(read.tokens) > self.batch_tokens:
                    raise too_many_states(sum(read.tokens), self.batch_tokens)
                ticket = await self._computed(read)
        except TimeoutError:
            said = f"not computed within {self.limits.timeout:g} seconds; try again later"
            raise ApiError(503, said, code="timeout", retry_after=self.queue.expected()) from None
        times = ticket.times(begun)
        self.metrics.waiting.observe(times["queue"])
        headers = {f"x-{name}-time": f"{1000 * seconds:.1f}" for name, seconds in times.items()}
        tokens, results = sum(ticket.read.tokens), cast("list[np.ndarray]", ticket.results)  # none is missing
        return Computed(results, tokens, {**headers, "x-compute-tokens": str(tokens)})

    async def _computed(self, read: Read) -> Ticket:
        """Queue texts, and return their ticket once all are computed."""
        ticket, ended = ticket_of(read)
        self._tickets.add(ticket)
        try:
            self.queue.put(ticket)
            if self.why:  # since the request was accepted
                raise self._refusal()
            await ended.wait()
        finally:
            self.queue.cancel(ticket)  # what is left, if the client has gone
            self._tickets.discard(ticket)
        if ticket.error is not None:
            raise ticket.error
        return ticket

    def _break(self, why: str) -> None:
        """Refuse everything from now on: nothing can be computed."""
        logger.error("the server no longer computes: %s", why)
        self.why = f"the model computes nothing any more: {why}"
        self._fail_all(self._refusal())

    def _refusal(self) -> ApiError:
        """Return why nothing is computed."""
        if self.state == "draining":
            return stopping()
        if self.why:
            return ApiError(503, self.why, code="broken", retry_after=30)
        return ApiError(503, "the model is being loaded; try again later", code="loading", retry_after=5)

    def _fail_all(self, error: ApiError) -> None:
        for ticket in list(self._tickets):
            ticket.fail(error)
