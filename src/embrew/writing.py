"""Write files and folders so that they are there whole or not at all."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp's files are for the owner only
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path, *, marker: str, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block ends without an error.

    Args:
        marker: A file every such folder holds. Only a folder with it (or an empty one) is ever replaced.
        overwrite: Whether an existing folder may be replaced.
    """
    check_free(folder, marker=marker, overwrite=overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", ignore_cleanup_errors=True) as name:
        new, old = Path(name) / "new", Path(name) / "old"
        new.mkdir()
        yield new
        assert (new / marker).exists(), f"{marker} was not written"
        for path in new.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        if folder.exists():
            os.rename(folder, old)
        try:
            os.rename(new, folder)
        except OSError:
            if old.exists():
                os.rename(old, folder)
            raise


def check_free(folder: Path, *, marker: str, overwrite: bool = False) -> None:
    """Raise unless `folder` can be written: it is absent or empty, or holds `marker` and may be overwritten."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{folder} exists already; choose another folder or allow overwriting it")
    if not (folder / marker).is_file():
        raise FileExistsError(f"{folder} holds no {marker}, so it was not written by embrew; it is left alone")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; NaN is refused."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as JSON Lines atomically; returns how many."""
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count
