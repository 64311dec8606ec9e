"""Metrics for Prometheus, and one log line per request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from embrew.model.prefix import PrefixCache

logger = logging.getLogger(__name__)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
FILL = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
Facts = dict[str, str | int | float]  # about a request, in its log line
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Metrics(Collector):
    """What this process counts and measures.

    Attributes:
        prefixes: function that returns the keys and values of prompts, per model.
    """

    def __init__(self) -> None:
        self.prefixes: Callable[[], Iterable[PrefixCache]] | None = None
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by path and status", ["path", "status"])
        self.seconds = self._histogram("request_seconds", "Seconds from first byte to answer", SECONDS, ["path"])
        self.queue_seconds = self._histogram("queue_seconds", "Seconds that requests waited", SECONDS)
        self.batch_seconds = self._histogram("batch_seconds", "Seconds of a batch", SECONDS)
        self.batch_fill = self._histogram("batch_fill", "Tokens of a batch as a share of --max-batch-tokens", FILL)
        self.batch_texts = self._histogram("batch_texts", "Texts of a batch", COUNTS)
        self.tokens = self._counter("tokens", "Tokens computed")
        self.texts = self._counter("texts", "Texts computed")
        self.chat_tokens = self._counter("chat_tokens", "Tokens written in chats")
        self.dropped = self._counter("dropped_texts", "Texts dropped because their client had gone")
        self.queue_tokens = Gauge("embrew_queue_tokens", "Tokens that wait or are computed", registry=self.registry)
        self.queue_texts = Gauge("embrew_queue_texts", "Texts that wait or are computed", registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield what is counted of prompts; Prometheus' client calls it for an answer."""
        if self.prefixes is not None:
            prefixes = list(self.prefixes())
            hits = "Forward passes that read the keys and values of their prompt"
            yield CounterMetricFamily("embrew_prefix_hits", hits, sum(each.hits for each in prefixes))
            misses = sum(each.misses for each in prefixes)
            yield CounterMetricFamily("embrew_prefix_misses", "Forward passes that computed them", misses)
            memory = "Memory of the keys and values of prompts"
            yield GaugeMetricFamily("embrew_prefix_bytes", memory, sum(each.bytes for each in prefixes))

    def batch(self, texts: int, tokens: int, seconds: float, batch_tokens: int) -> None:
        """Record a batch."""
        self.batch_seconds.observe(seconds)
        self.batch_fill.observe(tokens / batch_tokens)
        self.batch_texts.observe(texts)
        self.tokens.inc(tokens)
        self.texts.inc(texts)

    def request(self, facts: Facts, seconds: float) -> None:
        """Record a request, and write its log line: one JSON object, without its texts."""
        self.requests.labels(facts["path"], str(facts["status"])).inc()
        self.seconds.labels(facts["path"]).observe(seconds)
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        logger.info("%s", json.dumps({"time": time, **facts, "seconds": seconds}))

    def _counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"embrew_{name}", description, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(f"embrew_{name}", text, labels, registry=self.registry, buckets=buckets)
