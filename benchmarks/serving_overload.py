"""`embrew serve` under more requests than it can compute: what is refused, what the others wait, and memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from harness import Bar, Benchmark, Measure, Outcome, Unequal
from serving import SETTING, compare, ours
from serving_load import UNANSWERED
from serving_models import TEXTS, models, queries
from serving_servers import Load

CLIENTS = 16
LONG, CROWD = 5_000_000, 600  # characters of a long text; requests at one time
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


def beside_long_texts(benchmark: Benchmark, *, rounds: int) -> Outcome:
    """Send small requests alone, and beside two clients whose texts are very long, in turn; then a crowd at once."""
    small = [texts[:1] for texts in queries()]
    words = " ".join(text for texts in queries() for text in texts) * 100
    crowd = [[words[500 * i : 500 * (i + 1)] for i in range(16)]]
    alone, beside, busy, refused = [], [], [], []
    with models() as place, ours(place, "float32", "--max-queued-tokens", str(QUEUED)) as server:
        for _ in range(rounds):
            alone.append(server.under(small, clients=CLIENTS, warm=3, seconds=12))
            with ThreadPoolExecutor(1) as pool:
                heavy = pool.submit(server.under, [[words[:LONG]]], clients=2, warm=1, seconds=14)
                beside.append(server.under(small, clients=CLIENTS, warm=3, seconds=12))
            busy.append(os.getloadavg()[0])
        for _ in range(rounds):
            load = server.under(crowd, rate=20 * CROWD, seconds=0.05)
            took = sorted(1e3 * (end - due) for due, end, status, _ in load.found.answers if status == 429)
            refused.append({"answers": str(load.statuses), "p50 (ms)": took[len(took) // 2], "longest (ms)": took[-1]})
    what = f"latency of {CLIENTS} small clients, 99th percentile, beside two texts of {LONG} characters; peer: alone"
    notes = {
        "load of the machine": f"{min(busy):.1f} to {max(busy):.1f}",
        "answers to the long texts, last round": str(heavy.result().statuses),
        "phases": [row("alone", load) for load in alone] + [row("beside long texts", load) for load in beside],
        f"refusals of {CROWD} requests of 16 texts within 50 ms": refused,
    }
    times = ([load.latency(99) for load in loads] for loads in (beside, alone))
    measures = [compare(what, *times, Bar(gate=1 / 3, target=1 / 3))]
    return Outcome(equality={"answers that are not due": 0.0}, measures=measures, notes=notes)


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
] + [
    Benchmark(
        name="serve-long-texts",
        title=f"{CLIENTS} clients with one question per request, alone and beside two clients with texts of "
        f"{LONG} characters, in turn; then {CROWD} requests at once: 12 random Llama layers of width 768, float32.",
        run=partial(beside_long_texts, rounds=3),
    )
]
