"""Hashes of a shard's texts, in a file of their own: what tells later which of its rows a corpus still has.

A file holds 16 bytes per row (BLAKE2b of the text) and ends with a sha256 of them and of the shard that they belong to.
One that is missing or damaged costs nothing but time: the rows of its shard are encoded again by an update.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from embrew.corpus.layout import ABOUT

SIZE = 16


def hashes_name(shard: str) -> str:
    """Name of the file for a shard's file name, relative to the folder."""
    return f"{ABOUT}/{shard.removesuffix('.parquet')}.texts"


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """Hashes of texts, uint64 `(texts, 2)`."""
    data = b"".join(hashlib.blake2b(text.encode(), digest_size=SIZE).digest() for text in texts)
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2)


def write_hashes(folder: Path, shard: str, input_sha256: str, hashes: np.ndarray) -> None:
    """Write the hashes of a shard's texts; they are verified when they are read, so no write needs to be atomic."""
    path = folder / hashes_name(shard)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # it may be a second name of a file in the older version of the folder
    data = hashes.tobytes()
    path.write_bytes(data + _seal(data, input_sha256))


def read_hashes(folder: Path, shard: str, rows: int, input_sha256: str) -> np.ndarray | None:
    """Return the hashes of a shard's texts, uint64 `(rows, 2)`; None where they are missing or damaged."""
    try:
        content = (folder / hashes_name(shard)).read_bytes()
    except FileNotFoundError:
        return None
    data, seal = content[: rows * SIZE], content[rows * SIZE :]
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2) if seal == _seal(data, input_sha256) else None


def _seal(data: bytes, input_sha256: str) -> bytes:
    return hashlib.sha256(input_sha256.encode() + data).digest()
