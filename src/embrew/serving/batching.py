"""Texts that wait, and the loop that computes them in batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from embrew.serving.errors import ApiError
from embrew.serving.metrics import Metrics
from embrew.serving.models import Key, TokenizedTexts

logger = logging.getLogger(__name__)
GATHERING = 0.02  # of a batch's seconds: the longest wait for the next requests of clients that it answered
Compute = Callable[[Key, Sequence[Any]], Awaitable[Sequence[np.ndarray]]]  # one result per row


class Job:
    """The texts of one request, from the queue to their results.

    Attributes:
        texts: tokenised texts.
        arrived: time when they were queued, in seconds of `time.monotonic`.
        started: time when the first of them was computed; None: not yet.
        computing: seconds of the forward passes that they were part of.
        waiting: indices of the texts that wait.
        results: result of the model by index of the text.
        done: future that is set when all texts are computed, or cannot be.
    """

    def __init__(self, texts: TokenizedTexts) -> None:
        self.texts = texts
        self.arrived = time.monotonic()
        self.started: float | None = None
        self.computing = 0.0
        self.waiting = deque(range(len(texts.rows)))
        self.results: dict[int, np.ndarray] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: ApiError) -> None:
        """End the waiting with an error, unless it has ended."""
        if not self.done.done():
            self.done.set_exception(error)


Batch = list[tuple[Job, int]]  # texts: their job, and their index in it


class Queue:
    """Texts that wait, in the order of their requests. All methods run in the event loop.

    Args:
        metrics: metrics that count batches.

    Attributes:
        max_tokens: number of tokens that may wait or be computed; more are refused, unless none wait.
        batch_tokens: number of tokens of a batch; a longer text is computed alone.
        tokens: number of tokens that wait or are computed.
        texts: number of texts that wait or are computed.
        jobs: jobs that are not answered, the oldest first.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.max_tokens = self.batch_tokens = 0
        self.tokens = self.texts = 0
        metrics.queue_tokens.set_function(lambda: self.tokens)
        metrics.queue_texts.set_function(lambda: self.texts)
        self.jobs: dict[Job, None] = {}
        self._speed = 0.0  # tokens per second, lately
        self._changed = asyncio.Event()

    async def compute(self, texts: TokenizedTexts) -> Job:
        """Queue the texts of a request, and return them once all are computed.

        Raises:
            ApiError: too many tokens wait, or a text cannot be computed.
        """
        self.check_room(sum(texts.work))
        job = Job(texts)
        self.jobs[job] = None
        self._count([(job, index) for index in job.waiting], 1)
        self._changed.set()
        try:
            await job.done
        finally:  # where the client has gone, or a text failed, the others are dropped
            self.metrics.dropped.inc(len(job.waiting))
            self._count([(job, index) for index in job.waiting], -1)
            del self.jobs[job]
            job.done.cancel()
        return job

    def expected_seconds(self) -> float:
        """Return the estimated seconds until all texts that wait are computed, from 1 to 60."""
        return min(60.0, max(1.0, self.tokens / self._speed if self._speed else 1.0))

    async def run(self, compute: Compute, example: TokenizedTexts) -> None:
        """Compute what waits, batch after batch, until it is cancelled.

        Args:
            compute: function that computes rows of one key.
            example: texts that can be computed; where they fail, nothing can.

        Raises:
            Exception: the model computes nothing any more.
        """
        while True:
            while not (batch := self._next_batch()):
                self._changed.clear()
                await self._changed.wait()
            begun = time.monotonic()
            before = self.tokens
            try:
                await self._compute(batch, compute, example)
            finally:
                work = self._count(batch, -1)
            seconds = time.monotonic() - begun
            speed = work / max(seconds, 1e-6)
            self._speed = speed if not self._speed else 0.8 * self._speed + 0.2 * speed
            self.metrics.batch(len(batch), work, seconds, self.batch_tokens)
            await self._wait_for_more(min(self.batch_tokens, 0.9 * before), GATHERING * seconds)

    def _next_batch(self) -> Batch:
        """Return the oldest text and others that share its forward pass, in order."""
        batch: Batch = []
        room, waiting = self.batch_tokens, [job for job in self.jobs if job.waiting and not job.done.done()]
        for job in waiting:
            while job.waiting and job.texts.key == waiting[0].texts.key:
                room -= job.texts.work[job.waiting[0]]
                if room < 0 and batch:
                    return batch
                batch.append((job, job.waiting.popleft()))
                job.started = job.started or time.monotonic()
        return batch

    async def _compute(self, batch: Batch, compute: Compute, example: TokenizedTexts) -> None:
        """Compute texts that share a forward pass; a failing batch is halved until the failing text is alone."""
        batch = [(job, index) for job, index in batch if not job.done.done()]
        if not batch:
            return
        begun = time.monotonic()
        try:
            results = await compute(batch[0][0].texts.key, [job.texts.rows[index] for job, index in batch])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            logger.warning("computing %d texts failed: %s", len(batch), reason)
            if len(batch) > 1:
                await self._compute(batch[: len(batch) // 2], compute, example)
                await self._compute(batch[len(batch) // 2 :], compute, example)
                return
            await compute(example.key, example.rows)  # if it fails, too, the engine is broken
            ((job, index),) = batch
            message = f"text {index} cannot be embedded: {reason}"
            job.fail(ApiError(422, message, param="input", code="not_embedded"))
            return
        for job in dict.fromkeys(job for job, _ in batch):
            job.computing += time.monotonic() - begun
        for (job, index), result in zip(batch, results, strict=True):
            job.results[index] = result
            if len(job.results) == len(job.texts.rows) and not job.done.done():
                job.done.set_result(None)

    async def _wait_for_more(self, enough: float, seconds: float) -> None:
        """Wait for the next requests of clients that were just answered, so that all share the next batch.

        Without it, clients that wait for their answers fall into two groups, and each batch holds half of their texts.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.tokens < enough:
                    self._changed.clear()
                    await self._changed.wait()

    def check_room(self, more: int) -> None:
        """Refuse a request with that many tokens; 1: before its body is read.

        Raises:
            ApiError: too many tokens wait.
        """
        if self.tokens and self.tokens + more > self.max_tokens:
            message = f"{self.tokens} tokens wait to be computed, and at most {self.max_tokens} may; try again later"
            raise ApiError(429, message, code="queue_full", retry_after=self.expected_seconds())

    def _count(self, batch: Batch, sign: int) -> int:
        """Add texts to those that are here, or subtract them; return their tokens."""
        work = sum(job.texts.work[index] for job, index in batch)
        self.texts += sign * len(batch)
        self.tokens += sign * work
        return work
