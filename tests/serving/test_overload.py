"""Ten times as many requests as can be computed: refused at once, and forgotten afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter

from tests.serving.running import Words, of_words, running
from tests.serving.test_faults import CLIENT, assert_empty

Answers = list[tuple[int, float]]  # status and seconds of each request


def load(address: str, body: object, *, seconds: float, per_second: float, clients: int) -> Answers:
    """Send requests at a rate, whether or not the ones before are answered; a client waits for its own answer."""
    found: Answers = []
    ends = time.monotonic() + seconds

    def ask(number: int) -> None:
        due = time.monotonic() + number / per_second
        while due < ends:
            time.sleep(max(0.0, due - time.monotonic()))
            begun = time.monotonic()
            status = CLIENT.post(f"{address}/embed", json=body).status_code
            found.append((status, time.monotonic() - begun))
            due = max(due + clients / per_second, time.monotonic())

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ten_times_the_capacity():
    """A pass of two requests takes 0.2 s: 10 per second are computed, and 100 arrive."""
    service = of_words(Words(0.2), batch_tokens=10, max_queued_tokens=20)
    with running(service) as address:
        assert CLIENT.post(f"{address}/embed", json={"inputs": "warm"}).status_code == 200
        answers = load(address, {"inputs": "a b c d"}, seconds=2.5, per_second=100, clients=40)
        counts = Counter(status for status, _ in answers)
        assert set(counts) == {200, 429}
        assert 10 <= counts[200] <= 32, "2.5 s of 10 per second, and what then waits"
        assert counts[429] > 2 * counts[200]
        slowest = max(seconds for status, seconds in answers if status == 200)
        assert slowest < 2, "at most two batches wait, and one is computed"
        assert CLIENT.post(f"{address}/embed", json={"inputs": "after"}).status_code == 200
        assert_empty(service)
