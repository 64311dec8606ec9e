"""Locks on folders: a process holds one until it ends, also if it is killed; forked processes do not hold it."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_held: set[int] = set()  # file descriptors


@contextmanager
def claimed(folder: Path, doing: str) -> Iterator[None]:
    """Lock a folder for this process; create it if needed.

    The lock ends with the process, also if it is killed. A folder that was created here and is still empty is removed.

    Args:
        folder: the folder to lock.
        doing: what this process does to it, as in "another process is training into FOLDER": "training into".

    Raises:
        FileExistsError: another process holds it.
    """
    is_new = not folder.exists()
    handle, is_locked = _opened(folder)
    _held.add(handle)
    try:
        if is_locked is False:
            raise _refusal(folder, doing)
        if is_locked is None:
            logger.warning(
                "%s is on a file system without locks; make sure that no other process is %s it", folder, doing
            )
        yield
    finally:
        if is_new and is_locked:
            with suppress(OSError):
                folder.rmdir()
        if handle in _held:
            _held.remove(handle)
            os.close(handle)


def check_unclaimed(folder: Path, doing: str) -> None:
    """Raise if another process holds a folder; nothing is locked or created. Arguments and errors as for `claimed`."""
    if is_held(folder):
        raise _refusal(folder, doing)


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock on a file or folder; False if it does not exist, or without locks."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return lock(handle) is False
    finally:
        os.close(handle)


def lock(handle: int) -> bool | None:
    """Lock an open file or folder; return False if another process has it, None if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.debug("no locks on this file system: %s", error)
        return None
    return True


def _opened(folder: Path) -> tuple[int, bool | None]:
    """Return a folder's descriptor and whether it is locked; open it again if it was removed before it was locked."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        is_locked = lock(handle)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), folder.stat()):
                return handle, is_locked
        os.close(handle)


def _refusal(folder: Path, doing: str) -> FileExistsError:
    return FileExistsError(f"another process is {doing} {folder}; wait until it ends, or choose another folder")


def _let_go() -> None:
    """Close the parent's descriptors in a forked process; otherwise a lock would last as long as the last child."""
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
