"""The queue alone: each text once, oldest first, within the budget, and counts that return to zero."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from embrew.serving.batching import Queue
from embrew.serving.errors import ApiError
from embrew.serving.metrics import Metrics
from embrew.serving.models import Key, TokenizedTexts

BUDGET = 50
KEYS = [Key(), Key(num_layers=2), Key(context="examples")]


def texts(name: object, work: Sequence[int], key: Key = KEYS[0]) -> TokenizedTexts:
    """A request whose texts need that many tokens; rows are `(key, name, index, tokens)`."""
    return TokenizedTexts(key, [(key, name, i, tokens) for i, tokens in enumerate(work)], work, work)


def queue_of(max_tokens: int) -> Queue:
    queue = Queue(Metrics())
    queue.max_tokens, queue.batch_tokens = max_tokens, BUDGET
    return queue


async def with_queue(queue: Queue, compute: Any, requests: Any) -> Any:
    loop = asyncio.create_task(queue.run(compute, texts("example", [1])))
    try:
        return await requests
    finally:
        loop.cancel()


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_requests_and_cancellations(seed):
    chance, queue = random.Random(seed), queue_of(10**9)
    rows: list[Any] = []

    async def compute(key: Key, batch: Sequence[Any]) -> list[np.ndarray]:
        assert all(row[0] == key for row in batch)
        assert sum(row[3] for row in batch) <= BUDGET or len(batch) == 1
        await asyncio.sleep(0)
        if any(row[1] == 7 for row in batch):
            raise RuntimeError("poison")  # the others of the batch are computed again, without it
        rows.extend(batch)
        return [np.array(row[1:3]) for row in batch]

    async def request(name: int) -> None:
        await asyncio.sleep(chance.random() / 50)
        work = [chance.randint(1, 70) for _ in range(chance.randint(1, 6))]
        waiting = asyncio.ensure_future(queue.compute(texts(name, work, chance.choice(KEYS))))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() / 100)
            waiting.cancel()
        with suppress(asyncio.CancelledError, *[ApiError] * (name == 7)):
            job = await waiting
            assert name != 7
            assert [job.results[i].tolist() for i in range(len(work))] == [[name, i] for i in range(len(work))]

    async def requests() -> None:
        await asyncio.gather(*(request(name) for name in range(100)))
        while queue.texts:
            await asyncio.sleep(0.001)

    asyncio.run(with_queue(queue, compute, requests()))
    computed = [row[1:3] for row in rows if row[1] not in (7, "example")]
    assert len(computed) == len(set(computed)) > 50, "a text was computed twice"
    assert (queue.tokens, queue.texts, len(queue.jobs)) == (0, 0, 0)


def test_the_oldest_goes_first_though_another_key_has_more():
    batches: list[list[object]] = []

    async def compute(key: Key, batch: Sequence[Any]) -> list[np.ndarray]:
        batches.append([row[1] for row in batch])
        return [np.zeros(1) for _ in batch]

    queue = queue_of(1000)
    first, second, third = texts("a", [1], KEYS[1]), texts("b", [1] * 30), texts("c", [1], KEYS[1])
    asyncio.run(with_queue(queue, compute, asyncio_gather(queue, first, second, third)))
    assert batches == [["a", "c"], ["b"] * 30]


async def asyncio_gather(queue: Queue, *requests: TokenizedTexts) -> None:
    await asyncio.gather(*map(queue.compute, requests))


def test_clients_that_were_answered_are_waited_for_and_not_longer():
    queue = queue_of(1000)

    async def seconds_of(enough: float, seconds: float) -> float:
        begun = time.monotonic()
        await queue._wait_for_more(enough, seconds)
        return time.monotonic() - begun

    async def requests() -> None:
        assert await seconds_of(0, 10) < 1, "enough is here"
        assert 0.03 <= await seconds_of(40, 0.04) < 1, "the time is over"
        later = asyncio.get_running_loop().call_later(0.05, lambda: jobs.append(asyncio.ensure_future(put())))
        assert 0.04 <= await seconds_of(40, 10) < 1, "they are back"
        assert later.when() and jobs[0].cancel()

    async def put() -> None:
        await queue.compute(texts("a", [40]))

    jobs: list[Any] = []
    asyncio.run(requests())
