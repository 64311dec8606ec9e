"""Connections: headers that do not end, more connections than allowed, HEAD, and names in the header `Host`."""

from __future__ import annotations

import time
from contextlib import suppress
from unittest import mock

import httpx
import pytest

from embrew.serving import server
from embrew.serving.settings import Settings
from tests.serving.running import Words, of_words, running
from tests.serving.test_faults import post, raw, rest, until
from tests.serving.test_limits import refused

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


def test_headers_that_do_not_end() -> None:
    """Nothing, a part, a part after an answer, and a byte from time to time: closed when the time is over."""
    with running(of_words(Words()), seconds=0.5) as address:
        begun = time.monotonic()
        held = [raw(address), raw(address, HEALTH), raw(address, HEALTH + b"\r\n", HEALTH)]
        dripping = raw(address, HEALTH + b"x-a: ")
        until(lambda: time.monotonic() > begun + 0.25)
        dripping.sendall(b"a")
        assert [rest(each).count(b"HTTP/1.1 200") for each in held] == [0, 0, 1]
        assert rest(dripping) == b""
        assert 0.4 < time.monotonic() - begun < 10


def test_more_connections_than_allowed() -> None:
    """The one that has waited longest for a request is closed; those on which requests are answered are kept."""
    engine = Words()
    service = of_words(engine)
    with running(service, most=3) as address:
        idle = raw(address, HEALTH + b"\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        half = []
        for _ in range(8):
            half.append(raw(address, HEALTH))
            time.sleep(0.01)  # a loop may count in milliseconds
        assert httpx.get(f"{address}/health", timeout=5).status_code == 200
        for first in half[:6]:  # long before their time is over
            with suppress(ConnectionResetError):
                assert rest(first) == b""
        engine.gate.clear()
        busy = [raw(address, post(b'{"inputs": "a"}', connection="close")) for _ in range(3)]
        until(lambda: service.queue.texts == 3)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{address}/health", timeout=5)
        engine.gate.set()
        assert [rest(each)[:12] for each in busy] == [b"HTTP/1.1 200"] * 3
        assert httpx.get(f"{address}/health", timeout=5).status_code == 200


def test_head() -> None:
    """The headers of GET without its body, on every path that GET has; the connection can be used again."""
    with running(of_words(Words())) as address, httpx.Client(base_url=address) as client:
        for path in ("/", "/health", "/info", "/v1/models", "/openapi.json", "/metrics"):
            full, head = client.get(path), client.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == full.headers["content-type"]
            assert path == "/metrics" or head.headers["content-length"] == str(len(full.content))
        assert client.head("/embed").status_code == 405
        assert client.head("/nope").status_code == 404


def test_names_of_the_server() -> None:
    """On loopback without a key: a page of another site that reaches the server by its own name gets nothing."""
    hosts = {*server.LOOPBACK, "my-name"}
    with running(of_words(Words()), hosts=hosts) as address, httpx.Client(base_url=address) as client:
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:8000", "my-name:9", "localhost:"):
            assert client.get("/info", headers={"host": host}).status_code == 200, host
        for host in (
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "127.0.0.2",
            ":1",
        ):
            for path in ("/", "/health", "/info", "/embed"):
                answer = client.request("POST" if path == "/embed" else "GET", path, headers={"host": host})
                refused(
                    answer, 421, "unknown_host", f"the header Host is {host}; this server answers to 127.0.0.1, [::1]"
                )


@pytest.mark.parametrize(
    ("host", "key", "names"),
    [
        ("127.0.0.1", "", {"localhost", "127.0.0.1", "[::1]"}),
        ("127.0.0.2", "", {"localhost", "127.0.0.1", "[::1]", "127.0.0.2"}),
        ("127.0.0.1", "k", set()),
        ("0.0.0.0", "", set()),
    ],
)
def test_names_and_the_warning_follow_from_the_address(
    host: str, key: str, names: set[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Names are checked where only this machine reaches the server; others need a key, or a warning is shown."""
    caplog.set_level("INFO", logger="embrew")
    monkeypatch.setenv("EMBREW_API_KEY", key)
    with mock.patch.object(server, "create_app") as create_app, mock.patch.object(server.Server, "run"):
        server.serve(Settings("nano"), host=host, port=0)
    assert set(create_app.call_args.kwargs["hosts"]) == names
    assert f"listening at http://{host}:" in caplog.text
    assert ("it has no API key" in caplog.text) == (host == "0.0.0.0")
