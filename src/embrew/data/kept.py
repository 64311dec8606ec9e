"""Rows of large data sets, converted once: an Arrow file in the user's cache, which is mapped into memory."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock

from embrew.files.checksums import NAME, is_intact, write_checksums
from embrew.files.names import user_cache
from embrew.files.reading import read_json
from embrew.files.writing import atomic_folder, write_json

logger = logging.getLogger(__name__)

LARGE = 1 << 26  # bytes of files, from which on rows are kept
_ROWS, _REPORT = "rows.arrow", "report.json"


def is_kept(files: Sequence[Path]) -> bool:
    """Return whether rows of these files are kept: they are large, and the cache has room for twice their size."""
    size = sum(file.stat().st_size for file in files)
    if size < LARGE:
        return False
    folder = user_cache()
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    return os.access(existing, os.W_OK) and 2 * size < shutil.disk_usage(existing).free


def kept_rows(
    key: str, schema: pa.Schema, tables: Callable[[], Iterable[pa.Table]], report: Callable[[], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """Return the Arrow file that is kept under a key, and the report about its rows; write it if there is none.

    Another process that needs the same rows waits until they are written.

    Args:
        key: name of the folder; a hash of all that the rows depend on.
        schema: columns of the rows.
        tables: reads the rows, part by part.
        report: what to keep beside the rows, as JSON; called after `tables`.
    """
    folder = user_cache() / "rows" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{key}.lock"):
        if not (folder / NAME).is_file() or not is_intact(folder):
            with atomic_folder(folder, marker=NAME, overwrite=True) as new:
                with pa.OSFile(str(new / _ROWS), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
                    for table in tables():
                        stream.write_table(table)
                write_json(new / _REPORT, report())
                write_checksums(new)
            logger.info("these rows are kept in %s (embrew cache --clear)", folder)
    return folder / _ROWS, read_json(folder / _REPORT)
