"""Metrics for Prometheus, and one log line per request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily as Total
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from embrew.serving.queueing import Queue
from embrew.serving.tickets import Entry

logger = logging.getLogger(__name__)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
FILL = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Metrics(Collector):
    """What a server counts and measures.

    Args:
        queue: whose length is shown.
        counts: returns what the engines count; nothing before the model is opened.
    """

    def __init__(self, queue: Queue, counts: Callable[[], Mapping[str, int]]) -> None:
        self.queue, self.counts = queue, counts
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("embrew_requests", "Requests by path and status", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "embrew_request_seconds",
            "Seconds from a request's first byte to its answer",
            ["path"],
            registry=registry,
            buckets=SECONDS,
        )
        self.waiting = Histogram(
            "embrew_queue_seconds", "Seconds that requests waited", registry=registry, buckets=SECONDS
        )
        self.batch_seconds = Histogram("embrew_batch_seconds", "Seconds of a batch", registry=registry, buckets=SECONDS)
        self.batch_fill = Histogram(
            "embrew_batch_fill", "Tokens of a batch as a share of --max-batch-tokens", registry=registry, buckets=FILL
        )
        self.batch_texts = Histogram("embrew_batch_texts", "Texts of a batch", registry=registry, buckets=COUNTS)
        self.tokens = Counter("embrew_tokens", "Tokens computed", registry=registry)
        self.texts = Counter("embrew_texts", "Texts computed", registry=registry)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield what the queue and the engines count; Prometheus' client calls it for an answer."""
        queue, counts = self.queue, self.counts()
        yield Gauge("embrew_queue_tokens", "Tokens that wait or are computed", queue.tokens)
        yield Gauge("embrew_queue_texts", "Texts that wait or are computed", queue.texts)
        yield Total("embrew_dropped_texts", "Texts dropped since their client had gone", queue.dropped)
        if counts:
            said = "Forward passes that found the keys and values of their prompt"
            yield Total("embrew_prefix_hits", said, counts["prefix_hits"])
            yield Total("embrew_prefix_misses", "Forward passes that computed them", counts["prefix_misses"])
            yield Gauge("embrew_prefix_bytes", "Memory of the keys and values of prompts", counts["prefix_bytes"])

    def batch(self, entries: Sequence[Entry], seconds: float, batch_tokens: int) -> None:
        """Record a batch."""
        work = sum(entry.work for entry in entries)
        self.batch_seconds.observe(seconds)
        self.batch_fill.observe(work / batch_tokens)
        self.batch_texts.observe(len(entries))
        self.tokens.inc(work)
        self.texts.inc(len(entries))

    def request(self, facts: Mapping[str, Any]) -> None:
        """Record a request, and write its log line: one JSON object, without its texts."""
        self.requests.labels(facts["path"], str(facts["status"])).inc()
        self.seconds.labels(facts["path"]).observe(facts["seconds"])
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        logger.info("%s", json.dumps({"time": time, **facts}))

    def shown(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
