"""Hashes of a shard's texts, in a separate file, to find the rows that a newer corpus still has.

A file holds 16 bytes per row (BLAKE2b of the text) and ends with a sha256 of them and of the shard that they belong to.
If it is missing or damaged, an update encodes the rows of its shard again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from embrew.corpus.layout import ABOUT
from embrew.stores.paths import Place

SIZE = 16


def hashes_name(shard: str) -> str:
    """Return the name of a shard's file of hashes, relative to the folder."""
    return f"{ABOUT}/{shard.removesuffix('.parquet')}.texts"


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """Return hashes of texts, uint64 `(texts, 2)`."""
    data = b"".join(hashlib.blake2b(text.encode(), digest_size=SIZE).digest() for text in texts)
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2)


def write_hashes(folder: Place, shard: str, input_sha256: str, hashes: np.ndarray) -> None:
    """Write the hashes of a shard's texts; not atomic, since they are verified when they are read."""
    path = folder / hashes_name(shard)
    path.parent.mkdir(exist_ok=True)
    if isinstance(path, Path):
        path.unlink(missing_ok=True)  # it may be a hard link to a file of the older version of the folder
    data = hashes.tobytes()
    path.write_bytes(data + _seal(data, input_sha256))


def read_hashes(folder: Place, shard: str, rows: int, input_sha256: str) -> np.ndarray | None:
    """Return the hashes of a shard's texts, uint64 `(rows, 2)`; None where they are missing or damaged."""
    try:
        content = (folder / hashes_name(shard)).read_bytes()
    except FileNotFoundError:
        return None
    data, seal = content[: rows * SIZE], content[rows * SIZE :]
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2) if seal == _seal(data, input_sha256) else None


def _seal(data: bytes, input_sha256: str) -> bytes:
    return hashlib.sha256(input_sha256.encode() + data).digest()
