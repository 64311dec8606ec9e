"""Connections: headers that do not end, more connections than allowed, HEAD, and names in the header `Host`."""

import errno
import select
import socket
import threading
import time
from contextlib import ExitStack, suppress
from unittest import mock

import httpx
import pytest

from embrew.serving import server
from embrew.serving.settings import Settings
from tests.serving.running import Words, of_words, running, served
from tests.serving.test_faults import post, raw, rest, until
from tests.serving.test_limits import refused

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
FEW_FILES = """
import resource, sys
sys.modules["uvloop"] = None  # which not every machine has
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
"""


def test_headers_that_do_not_end():
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


def test_more_connections_than_allowed():
    """The one that has waited longest for a request is closed; those on which requests are answered are kept."""
    engine = Words()
    service = of_words(engine)
    with running(service, max_connections=3) as address:
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


def test_more_connections_than_files():
    """300 idle connections where 128 files may be open: all but 32 are closed at once, and one line says so."""
    with served("nano", first=FEW_FILES) as process, ExitStack() as sockets:
        address = process.ready()
        before = len(process.said)
        idle = [sockets.enter_context(raw(address)) for _ in range(300)]
        until(lambda: len(select.select(idle, [], [], 0)[0]) >= 300 - 32)
        assert httpx.get(f"{address}/health", timeout=5).status_code == 200
        assert len(select.select(idle, [], [], 0)[0]) <= 300 - 31
        lines = [line for line in process.said[before:].decode().splitlines() if '"path": "/health"' not in line]
        assert len(lines) == 1 and "32 connections are open, as many as the limit on open files" in lines[0]


def test_no_file_for_a_connection(caplog):
    """At most one line, however often connections are tried again; they are accepted once there are files."""
    with running(of_words(Words())) as address:
        with mock.patch.object(socket.socket, "accept", side_effect=OSError(errno.EMFILE, "Too many open files")) as no:
            waits = raw(address, HEALTH + b"connection: close\r\n\r\n")
            until(lambda: no.called)
        assert rest(waits).startswith(b"HTTP/1.1 200")
    assert len([each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]) <= 1


@pytest.mark.parametrize("method", [b"POST /embed", b"GET /health"])
def test_a_body_of_two_lengths(method):
    """A proxy that reads the other one may take what follows for a request of its next client (request smuggling)."""
    hidden = b"0\r\n\r\n" + HEALTH + b"\r\n"
    lengths = [b"content-length: %d\r\n" % len(hidden), b"transfer-encoding: chunked\r\n"]
    with running(of_words(Words())) as address:
        for lines in (lengths, lengths[::-1]):
            answer = rest(raw(address, method + b" HTTP/1.1\r\nhost: localhost\r\n", *lines, b"\r\n" + hidden))
            assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
            assert b"\r\nconnection: close\r\n" in answer
            assert b"both Content-Length and Transfer-Encoding; send one of them" in answer


def test_requests_start_no_threads():
    """One thread tokenises and one computes, however many requests are answered; a thread for each keeps its memory."""
    with running(of_words(Words())) as address, ExitStack() as sockets:
        before = set(threading.enumerate())
        for path in (b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", post(b'{"inputs": "a"}')):
            asked = [sockets.enter_context(raw(address, path)) for _ in range(20)]
            assert all(each.recv(65536).startswith(b"HTTP/1.1 200") for each in asked)
        assert len(set(threading.enumerate()) - before) <= 2


def test_head():
    """The headers of GET without its body, on every path that GET has; the connection can be used again."""
    with running(of_words(Words())) as address, httpx.Client(base_url=address) as client:
        for path in ("/", "/health", "/info", "/v1/models", "/openapi.json", "/metrics"):
            full, head = client.get(path), client.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == full.headers["content-type"]
            assert path == "/metrics" or head.headers["content-length"] == str(len(full.content))
        assert client.head("/embed").status_code == 405
        assert client.head("/nope").status_code == 404


def test_names_of_the_server():
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
def test_names_and_the_warning_follow_from_the_address(host, key, names, monkeypatch, caplog):
    """Names are checked where only this machine reaches the server; others need a key, or a warning is shown."""
    caplog.set_level("INFO", logger="embrew")
    monkeypatch.setenv("EMBREW_API_KEY", key)
    with mock.patch.object(server, "create_app") as create_app, mock.patch.object(server.Server, "run"):
        server.serve(Settings("nano"), host=host, port=0)
    assert set(create_app.call_args.kwargs["hosts"]) == names
    assert f"listening at http://{host}:" in caplog.text
    assert ("it has no API key" in caplog.text) == (host == "0.0.0.0")
