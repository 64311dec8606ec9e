"""One error for full, read-only or broken disks, which Python's, Rust's and C++'s writers report differently."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or choose another file system",
    errno.EROFS: "choose another disk",
    errno.EIO: "choose another disk, and copy what is on this one",
}
"""What the user can do, by error number of the disk."""

_NUMBERED = re.compile(r"\b(?:os error|errno) (\d+)\b", re.IGNORECASE)  # Rust and Arrow; faiss has no number
TORCH = ("PytorchStreamWriter failed", "unexpected pos ", "iostream error")  # torch.save gives no number


class DiskError(OSError):
    """A file or folder could not be written because of the disk; `errno` says why."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(number, os.strerror(number))
        self.path = path

    def __str__(self) -> str:
        number = self.errno or errno.EIO
        return (
            f"{os.strerror(number)} while writing {self.path}; what was finished before is kept, and an earlier "
            f"version is unchanged; {DISK[number]} and give the same command again"
        )


@contextmanager
def writing_to(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Raise `DiskError` for `path` if the block fails because of the disk.

    Args:
        path: the file or folder, as users know it.
        temporary: the file that is written instead; if given, errors that name another file are not changed.

    Raises:
        DiskError: the disk is the reason; other errors are not changed.
    """
    try:
        yield
    except DiskError as error:
        if temporary is None or not _is_in(error.path, temporary):
            raise
        raise DiskError(error.errno or errno.EIO, path) from error
    except Exception as error:
        number = disk_error(error, path)
        if number is None or (temporary is not None and not _about(error, temporary)):
            raise
        raise DiskError(number, path) from error


def disk_error(error: Exception, path: Path) -> int | None:
    """Return the error number of the disk that an exception reports; None for other exceptions."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in DISK else None
    said = str(error)
    numbers = [int(found) for found in _NUMBERED.findall(said)]
    named = [number for number in DISK if os.strerror(number) in said]
    found = next((number for number in (*numbers, *named) if number in DISK), None)
    if found is None and isinstance(error, RuntimeError) and any(words in said for words in TORCH):
        return errno.ENOSPC if _is_full(path) else errno.EIO
    return found


def _about(error: Exception, temporary: Path) -> bool:
    given = [getattr(error, name, None) for name in ("filename", "filename2")]
    named = [Path(os.fsdecode(name)) for name in given if isinstance(name, str | bytes | os.PathLike)]
    return not named or any(_is_in(path, temporary) for path in named)


def _is_in(path: Path, folder: Path) -> bool:
    path, folder = path.absolute(), folder.absolute()
    return path == folder or folder in path.parents


def _is_full(path: Path) -> bool:
    place = next((place for place in (path, *path.parents) if place.exists()), None)
    if place is None:
        return False
    about = os.statvfs(place)
    return about.f_bavail * about.f_frsize < 1 << 16
