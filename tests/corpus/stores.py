"""Stores for tests: one in memory under the schemes of real ones, and moto's S3 server with a proxy that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, register_implementation


class FakeStore(MemoryFileSystem):
    """fsspec's store in memory, with the paths of buckets: `bucket/key`, without a leading slash."""

    protocol = "gs"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    cachable = False  # typos: ignore

    @classmethod
    def _strip_protocol(cls, path):
        for scheme in ("gs://", "hf://"):
            path = path.removeprefix(scheme)
        return super()._strip_protocol(path)


@contextmanager
def in_memory() -> Iterator[type[FakeStore]]:
    """Let `gs://` and `hf://` be an empty store in memory."""
    known = {scheme: _registry.get(scheme) for scheme in ("gs", "hf")}
    FakeStore.store, FakeStore.pseudo_dirs = {}, [""]
    for scheme in known:
        register_implementation(scheme, FakeStore, clobber=True)
    try:
        yield FakeStore
    finally:
        for scheme, implementation in known.items():
            _registry.pop(scheme, None)
            if implementation is not None:
                register_implementation(scheme, implementation, clobber=True)


def objects(store: type[MemoryFileSystem], prefix: str) -> dict[str, bytes]:
    """All objects under a prefix, by the rest of their names."""
    return {
        name.removeprefix(f"/{prefix}/"): bytes(file.getbuffer())
        for name, file in store.store.items()
        if name.startswith(f"/{prefix}/")
    }


def put(name: str, data: bytes) -> None:
    """Write an object past all locks."""
    FakeStore().pipe_file(name, data)
