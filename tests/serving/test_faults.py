"""Texts, clients and engines that fail: every request is answered, and nothing stays behind."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from embrew.serving.models import Key
from embrew.serving.service import Service
from tests.serving.running import Words, of_words, running

CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None))


def until(found: Callable[[], Any], seconds: float = 10) -> None:
    """Wait until something is so."""
    ends = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.005)


def embed(address: str, *texts: str, **options: Any) -> httpx.Response:
    return CLIENT.post(f"{address}/embed", json={"inputs": list(texts), **options})


def raw(address: str, *parts: bytes) -> socket.socket:
    """A connection on which these bytes were sent."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    for part in parts:
        connection.sendall(part)
    return connection


def post(body: bytes, **headers: object) -> bytes:
    lines = {"host": "x", "content_type": "application/json", "content_length": len(body), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"POST /embed HTTP/1.1\r\n{head}\r\n".encode() + body


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def assert_empty(service: Service) -> None:
    """No request, no text, no byte of a body is counted any more."""
    until(lambda: (service.queue.tokens, service.queue.texts) == (0, 0))
    until(lambda: not service.queue.jobs and not service._tokenizing_calls)


@pytest.fixture
def engine() -> Iterator[Words]:
    made = Words()
    yield made
    made.gate.set()


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(70) as pool:
        yield pool


def test_one_bad_text_fails_its_own_request_only(engine, clients):
    service = of_words(engine)
    with running(service) as address:
        engine.gate.clear()
        texts = [["fine", "also poison" if i == 31 else f"text {i}"] for i in range(64)]
        asked = [clients.submit(embed, address, *each) for each in texts]
        until(lambda: service.queue.texts == 128)
        engine.gate.set()
        answers = [each.result() for each in asked]
        assert [i for i, answer in enumerate(answers) if answer.status_code != 200] == [31]
        assert answers[31].status_code == 422
        assert answers[31].json()["error"]["message"] == "text 1 cannot be embedded: RuntimeError: out of memory"
        assert answers[5].json() == [[4.0, 1.0], [6.0, 1.0]]
        assert httpx.get(f"{address}/health").status_code == 200
    assert_empty(service)


def test_texts_of_a_client_that_went_away_are_not_computed(engine, clients):
    service = of_words(engine, batch_tokens=10)
    with running(service) as address:
        engine.gate.clear()
        first = clients.submit(embed, address, "first")
        until(lambda: engine.passes)
        gone = raw(address, post(json.dumps({"inputs": [f"gone {i}" for i in range(50)]}).encode()))
        until(lambda: service.queue.texts == 51)
        last = clients.submit(embed, address, "last")
        until(lambda: service.queue.texts == 52)
        gone.close()
        until(lambda: service.queue.texts == 2)  # they no longer count, though the engine has not moved
        engine.gate.set()
        assert (first.result().status_code, last.result().status_code) == (200, 200)
        assert engine.texts == ["first", "last"]
        metrics = httpx.get(f"{address}/metrics").text
    assert "embrew_dropped_texts_total 50.0" in metrics
    assert "embrew_texts_total 2.0" in metrics
    assert 'embrew_requests_total{path="/embed",status="499"} 1.0' in metrics
    assert_empty(service)


def test_a_refusal_arrives_although_the_body_was_not_read(engine):
    """A server that closes with unread data resets the connection, and the client never sees why."""
    with running(of_words(engine, payload_limit=100)) as address:
        for _ in range(5):
            connection = raw(address, post(b"x" * 3_000_000))
            assert rest(connection).startswith(b"HTTP/1.1 413")


def test_a_slow_body_is_given_up(engine):
    service = of_words(engine, body_timeout=0.2)
    with running(service) as address:
        connection = raw(address, post(b'{"inputs": "a"}', content_length=50))
        said = rest(connection)
        assert said.startswith(b"HTTP/1.1 408")
        assert b"body_timeout" in said
        left = raw(address, post(b'{"inputs": "a"}', content_length=50))
        left.close()  # a client that goes before its body is complete
        assert embed(address, "b").status_code == 200
        until(lambda: 'status="499"} 1.0' in httpx.get(f"{address}/metrics").text)
    assert engine.texts == ["b"]


def test_time_out(engine):
    service = of_words(engine, batch_tokens=5, timeout=0.3)
    with running(service) as address:
        engine.gate.clear()
        answer = embed(address, *["a b c"] * 20)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "timeout"
        assert int(answer.headers["retry-after"]) >= 1
        assert service.queue.texts == 1, "only what is being computed"
        engine.gate.set()
        assert embed(address, "next").json() == [[4.0, 1.0]]
    assert engine.texts == ["a b c", "next"]
    assert_empty(service)


class Broken(Words):
    """Computes until `broken`; from then on nothing, as a GPU after an illegal access."""

    broken = False

    def compute(self, key: Key, rows: Sequence[Any]) -> list[np.ndarray]:
        if self.broken:
            self.gate.wait()
            raise RuntimeError("illegal memory access")
        return super().compute(key, rows)


def test_an_engine_that_computes_nothing_any_more(clients):
    engine = Broken()
    service = of_words(engine)
    with running(service) as address:
        assert embed(address, "a").status_code == 200
        engine.gate.clear()
        engine.broken = True
        asked = [clients.submit(embed, address, "a", num_layers=i % 4 + 1) for i in range(16)]
        until(lambda: service.queue.texts == 16)
        engine.gate.set()
        for answer in (each.result() for each in asked):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "broken"
            assert "illegal memory access" in answer.json()["error"]["message"]
        assert httpx.get(f"{address}/health").status_code == 503
        assert embed(address, "a").status_code == 503
    assert_empty(service)


def test_draining_finishes_what_runs_and_refuses_the_rest(engine, clients):
    service = of_words(engine, batch_tokens=10)
    with running(service) as address:
        engine.gate.clear()
        asked = [clients.submit(embed, address, f"text {i}") for i in range(8)]
        until(lambda: service.queue.texts == 8)
        service.drain()
        assert not service.drained()
        refused = embed(address, "late")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in refused.headers
        assert httpx.get(f"{address}/health").status_code == 503
        engine.gate.set()
        assert [each.result().status_code for each in asked] == [200] * 8
        until(service.drained)
    assert "late" not in engine.texts


def test_what_is_not_finished_in_time_is_answered(engine, clients):
    service = of_words(engine, batch_tokens=10, drain=0.2)
    with running(service) as address:
        engine.gate.clear()
        asked = [clients.submit(embed, address, f"text {i}") for i in range(8)]
        until(lambda: service.queue.texts == 8)
        service.drain()
        until(service.drained)
        assert [each.result().json()["error"]["code"] for each in asked] == ["draining"] * 8
        engine.gate.set()
    assert len(engine.passes) == 1


def test_a_request_that_the_server_cancels_is_answered(engine):
    """uvicorn cancels what still runs when it ends; the answer would be its own 500."""
    service = of_words(engine)
    engine.gate.clear()
    with running(service, timeout_graceful_shutdown=1) as address:
        connection = raw(address, post(b'{"inputs": "a"}'))
        until(lambda: engine.passes)
        service.drain()
    said = rest(connection)
    assert said.startswith(b"HTTP/1.1 503")
    assert b"draining" in said
    engine.gate.set()
    assert_empty(service)
