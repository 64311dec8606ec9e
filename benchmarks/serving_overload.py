"""`embrew serve` under more requests than it can compute: what is refused, what the others wait, and memory."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from harness import Bar, Benchmark, Measure, Outcome, Unequal
from serving import SETTING, ours
from serving_load import UNANSWERED
from serving_models import TEXTS, models, queries
from serving_servers import Load

CLIENTS = 16
QUEUED = 1536  # tokens that may wait: 1.5 times what 16 clients have in flight


def overload(benchmark: Benchmark, *, times: float, seconds: float) -> Outcome:
    """Send requests at a multiple of the rate that the server reaches, and then as before.

    Raises:
        Unequal: a request was not answered, or otherwise than with vectors or 429 and `Retry-After`.
    """
    requests = queries()
    with models() as place, ours(place, "float32", "--max-queued-tokens", str(QUEUED)) as server:
        first = server.under(requests, clients=CLIENTS, warm=8, seconds=30)
        rate = times * first.rate / TEXTS
        heavy = server.under(requests, rate=rate, warm=8, seconds=seconds)
        after = server.under(requests, clients=CLIENTS, warm=8, seconds=30)
    other = {status: count for status, count in heavy.statuses.items() if status not in (200, 429)}
    silent = sum(status == 429 and retry is None for _, _, status, retry in heavy.found.answers)
    if other or silent:
        raise Unequal(f"answers by status: {other}, {UNANSWERED} = none; 429 without Retry-After: {silent}")
    measures = [
        Measure.of(
            f"latency of accepted requests, 99th percentile, at {times:g} times the capacity; peer: at the capacity",
            "ms", heavy.latency(99), first.latency(99), Bar(gate=0.5, target=0.5, stretch=0.8),
        ),
        Measure.of(
            "largest resident memory; peer: at the capacity", "MB", heavy.memory, first.memory,
            Bar(gate=1 / 1.05, target=1 / 1.05),
        ),
        Measure.of(
            f"time per accepted text, at {times:g} times the capacity; peer: at the capacity", "ms",
            1e3 / heavy.rate, 1e3 / first.rate, Bar(gate=0.8, target=0.9),
        ),
        Measure.of(
            "time per text afterwards; peer: before", "ms", 1e3 / after.rate, 1e3 / first.rate,
            Bar(gate=0.8, target=0.9),
        ),
    ]  # fmt: skip
    phases = (("at the capacity", first), (f"{times:g} times the capacity", heavy), ("afterwards", after))
    notes = {
        "requests per second that were sent": rate,
        "load of the machine": f"{os.getloadavg()[0]:.1f}",
        "phases": [row(name, found) for name, found in phases],
    }
    return Outcome(equality={"requests without an answer that is due": 0.0}, measures=measures, notes=notes)


def row(name: str, load: Load) -> dict[str, Any]:
    """Return a phase as a row of a table."""
    refused = [1e3 * (end - due) for due, end, status, _ in load.found.answers if status == 429]
    return {
        "phase": name,
        "200": load.statuses.get(200, 0),
        "429": len(refused),
        "texts/s": load.rate,
        "p50 (ms)": load.latency(50),
        "p99 (ms)": load.latency(99),
        "longest refusal (ms)": max(refused, default=None),
        "RSS (MB)": load.memory,
    }


BENCHMARKS = [
    Benchmark(
        name=f"serve-overload-{times}",
        title=f"{times} times as many requests as can be computed, for {seconds} seconds: {SETTING}, float32, at most "
        f"{QUEUED} tokens in the queue.",
        run=partial(overload, times=times, seconds=seconds),
    )
    for times, seconds in ((4, 20), (10, 60))
]
