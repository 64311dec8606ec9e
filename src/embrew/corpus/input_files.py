"""The files of a corpus: which they are, which are left out, how many rows they have, and whether they changed."""

from __future__ import annotations

import gzip
import hashlib
import logging
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from embrew.data.formats import SUFFIXES, TABLES
from embrew.data.reading import data_files, expand, find_file, is_saved, require_regular
from embrew.stores.paths import Place, place_of, readable

logger = logging.getLogger(__name__)

ENDS = 1 << 16  # bytes at both ends of a file that are part of its fingerprint


def corpus_files(path: str | Place) -> list[Place]:
    """Return the files of a corpus in order: the file, the `corpus` of a BEIR folder, or all data files of a folder."""
    place = place_of(expand(str(path)))
    require_regular(place)
    if place.is_file():
        return [place]
    if place.is_dir():
        corpus = find_file(place, "corpus")
        return cast(list[Place], [corpus] if corpus else data_files(place))
    raise FileNotFoundError(f"no file or folder {str(path)!r}; give a path, or a URL of s3://, gs:// or hf://")


def say_unread(path: str) -> None:
    """Warn of data files in a local folder that are not part of the corpus."""
    place = place_of(expand(path))
    if not isinstance(place, Path) or not place.is_dir() or find_file(place, "corpus") is not None:
        return
    files = [] if is_saved(place) else data_files(place)
    endings = (*SUFFIXES, *TABLES)
    others = [file for file in place.rglob("*") if file.name.lower().endswith(endings) and file.is_file()]
    unread = sorted(file.relative_to(place).as_posix() for file in others if file not in files)
    if files and unread:
        named, more = ", ".join(unread[:5]), f" and {len(unread) - 5} more" if len(unread) > 5 else ""
        logger.warning(
            "%s: not read: %s%s; of a folder, its JSON Lines, Parquet and text files are read, or if there are none "
            "its tables (CSV, TSV, JSON), without subfolders",
            path,
            named,
            more,
        )


def fingerprint(files: Sequence[Place]) -> list[dict[str, Any]]:
    """Return name, size and a hash of both ends of each file, to recognise another corpus without reading it all."""
    prints = []
    for path in files:
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(ENDS))
            file.seek(max(size - ENDS, 0))
            digest.update(file.read(ENDS))
        prints.append({"file": path.name, "bytes": size, "ends_sha256": digest.hexdigest()})
    return prints


def expected_rows(files: Sequence[Place]) -> int | None:
    """Return the number of rows, with bad ones and blank lines.

    None if the files have to be parsed for it, or read from a store, or are damaged: those that read them say how.
    """
    with suppress(OSError, ValueError, EOFError, zlib.error):  # Arrow's errors are ValueError or OSError
        return _counted(files)
    return None


def _counted(files: Sequence[Place]) -> int | None:
    import pyarrow.parquet as pq

    total = 0
    for path in files:
        name = path.name.removesuffix(".gz")
        if name.endswith(".parquet"):
            total += pq.read_metadata(readable(path)).num_rows
        elif name.endswith((".jsonl", ".txt")) and isinstance(path, Path):
            with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
                total += sum(block.count(b"\n") for block in iter(partial(file.read, 1 << 20), b""))
        else:
            return None
    return total
