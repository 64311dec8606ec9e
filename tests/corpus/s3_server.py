"""moto's S3 server on this machine, and a proxy before it that lets requests fail at random moments of a seed."""

from __future__ import annotations

import http.client
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

KEY, SECRET = "AKIASENTINELKEY00001", "sentinel-secret-0123456789/abcdefghijklm"
SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
BROKEN = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
HANG = 1.5  # seconds; clients wait for one second
FAULTS = ("500", "503", "refused", "answer lost", "truncated", "too slow")


@contextmanager
def s3_server() -> Iterator[int]:
    """Yield the port of an S3 server."""
    server_module = pytest.importorskip("moto.server", reason='pip install "moto[server]" for these tests')
    pytest.importorskip("s3fs", reason='pip install "embrew[s3]" for these tests')
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()


def empty(port: int) -> None:
    """Leave nothing in the server but an empty bucket, `bucket`."""
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    server.request("POST", "/moto-api/reset")
    assert server.getresponse().status == 200
    server.close()
    store(port).mkdir("bucket")


def store(port: int) -> Any:
    """The file system of a server, without the proxy."""
    import s3fs

    return s3fs.S3FileSystem(key=KEY, secret=SECRET, endpoint_url=f"http://127.0.0.1:{port}", use_listings_cache=False)


def environment(port: int) -> dict[str, str]:
    """Variables with which clients find the server, or the proxy, at a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "FSSPEC_S3": '{"config_kwargs": {"read_timeout": 1, "connect_timeout": 1}}',
    }


def use(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find the server at a port."""
    import s3fs
    from fsspec.config import conf, set_conf_env

    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(conf, "s3", {})
    set_conf_env(conf)
    s3fs.S3FileSystem.clear_instance_cache()


def objects(port: int, prefix: str) -> dict[str, bytes]:
    """All objects under a prefix, by the rest of their names."""
    files = store(port)
    return {name.removeprefix(f"{prefix}/"): files.cat_file(name) for name in files.find(prefix)}


class Proxy:
    """Passes requests to a server; some of them fail.

    Attributes:
        port: where it listens.
        asked: number of requests.
        failed: number of requests that failed, by kind of failure.
    """

    def __init__(self, server: int, *, rate: float, seed: int) -> None:
        self.server, self.rate = server, rate
        self.asked, self.stopped = 0, False
        self.failed: Counter[str] = Counter()
        self._random, self._lock = random.Random(seed), threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def forward(self) -> None:
                proxy.forward(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

            def log_message(self, format: str, *values: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on, and end those that are open at their next request."""
        self.stopped = True
        self._http.shutdown()
        self._http.server_close()

    def fault(self) -> str | None:
        """Draw what happens to the next request."""
        with self._lock:
            self.asked += 1
            if self._random.random() >= self.rate:
                return None
            kind = self._random.choice(FAULTS)
            self.failed[kind] += 1
            return kind

    def forward(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        body, fault = _body(request), self.fault()
        if fault == "refused" or self.stopped:
            _reset(request)
            return
        if fault in ("500", "503"):
            _answer(request, int(fault), {"Content-Type": "application/xml"}, SLOW_DOWN if fault == "503" else BROKEN)
            return
        server = http.client.HTTPConnection("127.0.0.1", self.server, timeout=60)
        server.request(request.command, request.path, body, dict(request.headers.items()))
        answer = server.getresponse()
        content = answer.read()
        server.close()
        headers = {name: value for name, value in answer.getheaders() if name.lower() != "transfer-encoding"}
        if fault == "answer lost":
            _reset(request)
        elif fault == "truncated" and content:
            _answer(request, answer.status, headers, content, send=content[: len(content) // 2])
            _reset(request)
        else:
            if fault is not None:
                time.sleep(HANG)
            _answer(request, answer.status, headers, content)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if "chunked" not in request.headers.get("Transfer-Encoding", ""):
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    parts = []
    while size := int(request.rfile.readline().split(b";")[0], 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    del request.headers["Transfer-Encoding"]
    return b"".join(parts)


def _answer(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes, send: bytes | None = None
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        if name.lower() not in ("content-length", "server", "date", "connection"):
            request.send_header(name, value)
    length = headers.get("Content-Length", len(content)) if request.command == "HEAD" else len(content)
    request.send_header("Content-Length", str(length))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(content if send is None else send)
    request.wfile.flush()


def _reset(request: BaseHTTPRequestHandler) -> None:
    """End the connection with a reset."""
    request.close_connection = True
    with suppress(OSError):
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        request.connection.close()


def deny(request: BaseHTTPRequestHandler) -> None:
    """Answer that access is denied."""
    _body(request)
    _answer(request, 403, {"Content-Type": "application/xml"}, DENIED)
