"""The queue alone: each text once, oldest first, within the budget, and counts that return to zero."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from embrew.serving.asked import Key, Read
from embrew.serving.errors import ApiError
from embrew.serving.queueing import Queue
from embrew.serving.tickets import Entry, Ticket

BUDGET = 50
KEYS = [Key(), Key(num_layers=2), Key(context="examples")]


def ticket_with(work: Sequence[int], key: Key = KEYS[0]) -> Ticket:
    """A request whose texts need that many tokens."""
    return Ticket(Read(key, [f"text {i}" for i in range(len(work))], work, work), lambda: None)


def finish(batch: Sequence[Entry]) -> None:
    for entry in batch:
        entry.ticket.finish([(entry.place, np.zeros(1))], 0.0)


def is_empty(queue: Queue) -> bool:
    return (queue.tokens, queue.texts, len(queue._waiting)) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_calls_keeps_the_promises(seed: int) -> None:
    """Random requests, cancellations and deaths of workers against plain lists of what must come out."""
    chance, queue = random.Random(seed), Queue(10**9)
    alive: list[Ticket] = []
    taken: list[tuple[Ticket, int]] = []
    cancelled_texts = computed = 0
    for _ in range(300):
        move = chance.random()
        if move < 0.45:
            work = [chance.randint(1, 70) for _ in range(chance.randint(1, 6))]
            ticket = ticket_with(work, chance.choice(KEYS))
            queue.put(ticket)
            alive.append(ticket)
        elif move < 0.55 and alive:
            ticket = alive.pop(chance.randrange(len(alive)))
            cancelled_texts += sum(result is None for result in ticket.results)
            queue.cancel(ticket)
        elif queue.texts:
            batch = queue.take(BUDGET)
            assert batch
            assert len({entry.ticket.read.key for entry in batch}) == 1
            assert sum(entry.work for entry in batch) <= BUDGET or len(batch) == 1
            assert not any(entry.ticket.cancelled for entry in batch)
            assert all(entry.again for entry in batch) == any(entry.again for entry in batch)
            assert not batch[0].again or len(batch) == 1
            oldest = next(each for each in alive if None in each.results)
            assert batch[0].ticket is oldest
            assert batch[0].place == oldest.results.index(None)
            if chance.random() < 0.1 and not batch[0].again:
                queue.put_back(batch, alone=True)  # the worker ended
                continue
            finish(batch)
            queue.done(batch, 0.01)
            computed += len(batch)
            taken += [(entry.ticket, entry.place) for entry in batch]
            assert all(entry.ticket.results[entry.place] is not None for entry in batch)
    while queue.texts:
        batch = queue.take(BUDGET)
        assert batch
        finish(batch)
        queue.done(batch, 0.01)
        taken += [(entry.ticket, entry.place) for entry in batch]
    assert len(taken) == len(set(taken)) > 50, "a text was computed twice"
    assert all(None not in ticket.results for ticket in alive)
    assert is_empty(queue)
    assert queue.dropped == cancelled_texts


def test_threads_that_put_take_and_cancel_lose_nothing() -> None:
    """Four workers and four clients at one time; half of the requests are cancelled."""
    queue = Queue(10**9)
    done: list[tuple[Ticket, int]] = []
    kept: list[Ticket] = []

    def work() -> None:
        while (batch := queue.take(BUDGET)) is not None:
            finish(batch)
            done.extend((entry.ticket, entry.place) for entry in batch)
            queue.done(batch, 0.001)

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(200):
            ticket = ticket_with([chance.randint(1, 20) for _ in range(5)], chance.choice(KEYS))
            queue.put(ticket)
            if chance.random() < 0.5:
                queue.cancel(ticket)
            else:
                kept.append(ticket)

    workers = [threading.Thread(target=work) for _ in range(4)]
    clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in (*workers, *clients):
        thread.start()
    for thread in clients:
        thread.join(20)
    queue.close()
    for thread in workers:
        thread.join(20)
    assert not any(thread.is_alive() for thread in workers)
    assert len(done) == len(set(done))
    assert all(None not in ticket.results and not ticket._left for ticket in kept)
    assert is_empty(queue)


def test_two_workers_share_one_request() -> None:
    queue = Queue(1000)
    workers = [threading.Thread(target=queue.take, args=(BUDGET,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(0.1)  # until both wait
    queue.put(ticket_with([40, 40]))
    for worker in workers:
        worker.join(5)
    assert not any(worker.is_alive() for worker in workers)


def test_oldest_key_goes_first_though_another_has_more() -> None:
    queue = Queue(1000)
    first, second = ticket_with([1], KEYS[1]), ticket_with([1] * 30, KEYS[0])
    queue.put(first)
    queue.put(second)
    batch = queue.take(BUDGET)
    assert batch
    assert [entry.ticket for entry in batch] == [first]


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    queue = Queue(100)
    queue.put(ticket_with([500]))  # larger than the queue: accepted, since nothing waits
    with pytest.raises(ApiError) as refused:
        queue.put(ticket_with([1]))
    assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
    batch = queue.take(BUDGET)
    assert batch
    with pytest.raises(ApiError):
        queue.put(ticket_with([1]))  # it is being computed, and counts
    queue.done(batch, 10.0)  # 50 tokens per second
    queue.put(ticket_with([100]))
    assert queue.expected() == 2.0
    with pytest.raises(ApiError) as refused:
        queue.put(ticket_with([1]))
    assert refused.value.retry_after == 2.0


def test_cancelled_texts_make_room_at_once() -> None:
    queue = Queue(100)
    running, behind = ticket_with([60]), ticket_with([40])
    queue.put(running)
    queue.put(behind)
    assert queue.take(BUDGET)
    queue.cancel(behind)
    assert (queue.tokens, queue.texts, queue.dropped) == (60, 1, 1)
    queue.put(ticket_with([40]))


def test_a_closed_queue_empties_and_refuses() -> None:
    queue = Queue(100)
    ticket = ticket_with([10])
    queue.put(ticket)
    queue.close()
    with pytest.raises(ApiError) as refused:
        queue.put(ticket_with([1]))
    assert refused.value.status == 503
    assert queue.take(BUDGET) == [Entry(ticket, 0)]
    assert queue.take(BUDGET) is None


def gathering(queue: Queue, *, most: int = 1000, seconds: float = 100.0) -> float:
    """Return the seconds that a worker waits after a batch that took `seconds`."""
    begun = time.monotonic()
    queue.gather(most, seconds)
    return time.monotonic() - begun


def test_a_worker_waits_for_the_clients_that_it_answered_and_not_longer() -> None:
    """Of 100 tokens here, 50 were computed: once 40 of them are back, all 90 share the next batch."""
    queue = Queue(1000)
    first = ticket_with([50])
    queue.put(first)
    batch = queue.take(BUDGET)
    assert batch
    queue.put(ticket_with([50]))
    queue.done(batch, 100.0)
    assert gathering(queue, most=50) < 1, "a batch is full"
    again = threading.Timer(0.1, queue.put, [ticket_with([40])])
    again.start()
    assert 0.09 <= gathering(queue) < 1, "they are back"
    again.join()
    batch = queue.take(BUDGET)
    assert batch
    queue.done(batch, 2.0)
    assert 0.03 <= gathering(queue, seconds=2.0) < 1, "at most 2 % of the batch's time"
    queue.close()
    assert gathering(queue) < 1, "the queue is closed"
