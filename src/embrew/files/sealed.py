"""Lone files that hold the sha256 of the rest of themselves: JSON objects, and safetensors files.

Of a JSON object, the sha256 is that of its values (`digest_of`), whatever the white space and the order of keys.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embrew.files.checksums import digest_of

logger = logging.getLogger(__name__)
SHA256 = "sha256"
UNSEALED = {SHA256: "0" * 64}
"""Metadata of a safetensors file, for `seal_file`."""
CHANGED = f"it has changed since it was written: its {SHA256} differs"
_warned: set[str] = set()
LONGEST = 100_000_000  # bytes of a safetensors header, by its own definition


def content_sha256(values: Any) -> str:
    """Return the sha256 of a value as it is read again from JSON: keys are strings, and tuples lists."""
    return digest_of(json.loads(json.dumps(values)))


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the sha256 of the rest of it."""
    return {**values, SHA256: content_sha256(values)}


def unsealed(values: Mapping[str, Any], path: object, what: str) -> dict[str, Any]:
    """Return a JSON object without its sha256, which is compared; it is logged once that a kind of file has none.

    Args:
        values: content of the file.
        path: the file.
        what: what files of its kind are called.

    Raises:
        ValueError: the sha256 differs.
    """
    rest = {key: value for key, value in values.items() if key != SHA256}
    if SHA256 not in values:
        _warn_unsealed(path, what)
    elif values[SHA256] != content_sha256(rest):
        raise ValueError(f"{CHANGED} (if you changed it on purpose, remove the key {SHA256})")
    return rest


def seal_file(path: Path, name: str) -> None:
    """Replace `UNSEALED` in the metadata of a safetensors file by the sha256 of its bytes, with its name in that place.

    So two files whose names were exchanged are noticed.
    """
    offset, _, sha256 = _of_file(path, name)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(sha256.encode())


def check_file(path: Path) -> None:
    """Compare a safetensors file with the sha256 that it holds; it is logged once that a file has none.

    Raises:
        ValueError: it differs.
    """
    offset, stored, sha256 = _of_file(path, path.name)
    if not offset:
        _warn_unsealed(path, "safetensors files")
    elif stored != sha256:
        raise ValueError(CHANGED)


def _of_file(path: Path, name: str) -> tuple[int, str, str]:
    """Return where a safetensors file holds its sha256 (0: nowhere), that sha256, and that of the rest and its name."""
    with path.open("rb") as file:
        size = file.read(8)
        head = size + file.read(min(int.from_bytes(size, "little"), LONGEST))
        match = re.search(rb'"sha256":"([^"]{64})"', head)
        start, end = match.span(1) if match else (0, 0)
        digest = hashlib.sha256(head[:start] + name.encode() + head[end:])
        hashlib.file_digest(file, lambda: digest)
    return start, head[start:end].decode("latin-1"), digest.hexdigest()


def _warn_unsealed(path: object, what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        logger.warning(
            "%s has no %s, as one made by hand or by an earlier version: it is read, and changes of it are not noticed "
            "(said once for %s)",
            path,
            SHA256,
            what,
        )
