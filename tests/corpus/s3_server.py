"""moto's S3 server on this machine."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

KEY, SECRET = "AKIASENTINELKEY00001", "sentinel-secret-0123456789/abcdefghijklm"


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
    """The file system of a server."""
    import s3fs

    return s3fs.S3FileSystem(key=KEY, secret=SECRET, endpoint_url=f"http://127.0.0.1:{port}", use_listings_cache=False)


def environment(port: int) -> dict[str, str]:
    """Variables with which clients find the server at a port."""
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
