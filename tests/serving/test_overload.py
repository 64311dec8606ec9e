"""Ten times as many requests as can be computed: refused at once, in bounded memory, and forgotten afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.serving.running import Words, of_words, running, served
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


def test_ten_times_the_capacity() -> None:
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


def resident(pid: int) -> float:
    """Memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@pytest.mark.slow
def test_a_minute_of_overload() -> None:
    """Requests of 100 texts each from 64 clients, with a queue of four; memory after 15 s and at the end."""
    body = {"inputs": ["some words of a text " * 8] * 100}
    with served("nano", "--max-queued-tokens", 20_000, "--max-concurrent-requests", 48) as process:
        address = process.ready(200)
        begun = time.monotonic()
        assert CLIENT.post(f"{address}/embed", json=body).status_code == 200
        alone = time.monotonic() - begun
        with ThreadPoolExecutor(1) as pool:
            running_load = pool.submit(load, address, body, seconds=60, per_second=10 / alone, clients=64)
            time.sleep(15)
            early = resident(process.pid)
            answers = running_load.result()
        late = resident(process.pid)
        counts = Counter(status for status, _ in answers)
        assert set(counts) == {200, 429}
        assert counts[429] > counts[200] > 10
        assert late - early < 64
        begun = time.monotonic()
        assert CLIENT.post(f"{address}/embed", json=body).status_code == 200
        assert time.monotonic() - begun < 5 * alone + 1
        metrics = httpx.get(f"{address}/metrics").text
        assert "embrew_queue_tokens 0.0" in metrics
        accepted = sorted(seconds for status, seconds in answers if status == 200)
        said = f"{counts}, alone {alone:.2f} s, accepted at most {accepted[-1]:.2f} s, {early:.0f} to {late:.0f} MiB"
        sys.stdout.write(f"\n{said}\n")
