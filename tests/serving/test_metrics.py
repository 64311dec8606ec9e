"""Metrics for Prometheus are right, as its own parser reads them; log lines are one JSON object each, without texts."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.encoders import made, serving_copy
from tests.serving.running import Words, of_words, running

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
PRIVATE = "confidential-words"


def samples(client: httpx.Client) -> Samples:
    """All samples by name and labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((f"embrew_{name}", tuple(sorted(labels.items()))), 0.0)


def test_requests_texts_and_times_are_counted():
    """A text of words is one token per word, and one more; passes take 20 ms; a batch may have 100 tokens."""
    engine = Words(seconds=0.02)
    with running(of_words(engine)) as address, httpx.Client(base_url=address) as client:
        for texts in (["one two three"], ["four five", "six"]):
            assert client.post("/embed", json={"inputs": texts}).status_code == 200
        assert client.post("/v1/embeddings", json={"input": "seven"}).status_code == 200
        for path in ("/embed", "/never-heard-of", "/nor-of-this"):
            client.post(path, json={"unknown": 1})
        client.put("/embed")
        while value(found := samples(client), "batch_texts_count") < 3:  # a batch is counted after its answers
            pass
    counts = {("/embed", 200): 2, ("/embed", 400): 1, ("/embed", 405): 1, ("/v1/embeddings", 200): 1, ("other", 404): 2}
    for (path, status), count in counts.items():
        assert value(found, "requests_total", path=path, status=str(status)) == count
    paths = {dict(labels)["path"] for name, labels in found if name == "embrew_requests_total"}
    assert paths == {"/embed", "/v1/embeddings", "other"}, "clients cannot add further labels"
    assert value(found, "texts_total") == 4 and value(found, "tokens_total") == 4 + 3 + 2 + 2
    passes = len(engine.passes)
    assert value(found, "batch_texts_sum") == 4 and value(found, "batch_texts_count") == passes == 3
    assert value(found, "batch_fill_sum") == pytest.approx((4 + 5 + 2) / 100)
    assert 3 * 0.02 <= value(found, "batch_seconds_sum") < 3
    assert value(found, "queue_seconds_count") == 3
    assert value(found, "request_seconds_count", path="/embed") == 4
    assert value(found, "request_seconds_sum", path="/embed") >= 2 * 0.02
    for name in ("batch_texts", "batch_fill", "batch_seconds", "queue_seconds"):
        buckets = [each for (key, _), each in found.items() if key == f"embrew_{name}_bucket"]
        assert buckets == sorted(buckets) and buckets[-1] == value(found, f"{name}_count") > 0
    assert value(found, "queue_texts") == value(found, "queue_tokens") == value(found, "dropped_texts_total") == 0


def test_hits_of_prefixes(make_encoder):
    encoder = made(make_encoder, "last")
    with serving_copy(encoder) as address, httpx.Client(base_url=address) as client:

        def after(**asked: Any) -> tuple[float, float, float]:
            assert client.post("/embed", json={"inputs": ["a", "b c"], **asked}).status_code == 200
            found = samples(client)
            return value(found, "prefix_hits_total"), value(found, "prefix_misses_total"), value(found, "prefix_bytes")

        assert after() == (0, 0, 0) == after(prompt="short: ")
        assert after(prompt_name="long")[:2] == (0, 1)
        hits, misses, size = after(prompt_name="long")
        assert (hits, misses) == (1, 1) and size > 0
        assert after(prompt_name="sea")[:2] == (1, 2)
        assert after(prompt_name="sea")[:2] == (2, 2)
        hits, misses, more = after(prompt_name="long", input_type="query")
        assert (hits, misses) == (3, 2) and more > size


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "embrew.serving.metrics"]


def test_a_log_line_per_request(caplog):
    caplog.set_level(logging.DEBUG, "embrew")
    engine = Words()
    engine.error = RuntimeError("out of memory")
    with running(of_words(engine)) as address, httpx.Client(base_url=address) as client:
        given = {"x-request-id": "id-1", "user-agent": PRIVATE}
        body = {"inputs": [f"{PRIVATE} two", "three"], "prompt_name": "query", "num_layers": 2}
        answer = client.post("/embed", json=body, headers=given)
        assert answer.status_code == 200 and answer.headers["x-compute-tokens"] == "5"
        refused: list[tuple[Any, int]] = [
            ({"inputs": f"{PRIVATE} poison"}, 422),
            ({"inputs": [PRIVATE, 1]}, 400),
            ({"inputs": "a", "dimensions": PRIVATE}, 400),
            ({"inputs": "a", PRIVATE: 1}, 400),
            ({"inputs": "a", "prompt_name": PRIVATE + "\n", "dimensions": 9}, 400),
        ]
        answers = [client.post("/embed", json=body) for body, _ in refused]
        answers.append(client.post("/v1/embeddings", json={"input": "a", "model": PRIVATE}))
        answers.append(client.get(f"/{PRIVATE}?{PRIVATE}"))
        statuses = [status for _, status in refused] + [404, 404]
        assert [answer.status_code for answer in answers] == statuses
        client.get("/health")
    first, *others, health = lines(caplog)
    assert first.pop("seconds") > 0 and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "id": "id-1",
        "path": "/embed",
        "status": 200,
        "texts": 2,
        "tokens": 5,
        "prompt_name": "query",
        "num_layers": 2,
        "precision": "float32",
    }
    assert [line["status"] for line in others] == statuses
    assert [line["id"] for line in others] == [answer.headers["x-request-id"] for answer in answers]
    assert len({line["id"] for line in others}) == len(others)
    assert (health["path"], health["status"]) == ("/health", 200)
    assert PRIVATE not in caplog.text and "poison" not in caplog.text
