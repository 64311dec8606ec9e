"""Locks on folders; files and folders written all or nothing."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import io
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from embrew.files.reading import Place

logger = logging.getLogger(__name__)

_locks: set[int] = set()  # file descriptors


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
    _locks.add(handle)
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
        if handle in _locks:
            _locks.remove(handle)
            os.close(handle)


def check_unclaimed(folder: Path, doing: str) -> None:
    """Raise if another process holds a folder; nothing is locked or created. Arguments and errors as for `claimed`."""
    if is_held(folder):
        raise _refusal(folder, doing)


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock on a file or folder; False if it does not exist, or without locks."""
    with _lock_of(path) as locked:
        return locked is False


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


def _close_locks_in_child() -> None:
    """Close the parent's descriptors in a forked process; otherwise a lock would last as long as the last child."""
    for handle in _locks:
        with suppress(OSError):
            os.close(handle)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks_in_child)


PARTIAL = ".partial"
"""Suffix of temporary files and folders, `.NAME.RANDOM.partial`, in the folder of what they will replace."""

ATTEMPTS = 5
Value = TypeVar("Value")
_TEMPORARY = re.compile(rf"\.(.+)\.[a-z0-9_]{{8}}{re.escape(PARTIAL)}")


@contextmanager
def atomic_path(path: Place, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` when the block ends without an error; in a store, it is put there.

    Temporary files of killed processes are removed.

    Raises:
        DiskError: the disk is full, read-only or broken; names `path`.
        FileExistsError: `overwrite` is off, and `path` exists when the block begins or when it ends.
    """
    if not isinstance(path, Path):
        with path.uploaded() as temporary:
            yield temporary
        return
    if not overwrite:
        check_absent(path)
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
        temporary, handle = _locked(lambda: tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL))
    try:
        with writing_to(path, temporary):
            yield temporary
            temporary.chmod(0o644)  # mkstemp's files are for the owner only
            flush(temporary)
            if overwrite:
                os.replace(temporary, path)
            else:
                _move_new(temporary, path)
            flush(path.parent)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path, *, marker: str, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` when the block ends without an error.

    Whether `folder` may be replaced is checked at the beginning, when no other process writes it any more, and at the
    end, since what does not take this lock may have written it meanwhile.

    An existing folder and the new one are exchanged in one step, where the file system can do so (Linux, macOS).
    Elsewhere the old one is moved away first; if the process is killed in between, `recover` moves it back.

    Args:
        folder: the folder to write; of a symbolic link, its target is replaced.
        marker: a file that every such folder has. Only a folder with it, or an empty one, is replaced.
        overwrite: whether an existing folder may be replaced.

    Raises:
        DiskError: the disk is full, read-only or broken; names `folder`.
        FileExistsError: `folder` may not be replaced, or another process is writing it.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    recover(folder)
    check_free(folder, marker=marker, overwrite=overwrite)
    with writing_to(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch, handle = _locked(
            lambda: (None, tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=PARTIAL))
        )
    try:
        with writing_to(folder, scratch):
            if _is_written(folder, but=scratch):
                raise FileExistsError(
                    f"another process is writing {folder}; wait until it ends, or choose another folder"
                )
            check_free(folder, marker=marker, overwrite=overwrite)
            new = scratch / "new"
            new.mkdir()
            yield new
            assert (new / marker).exists(), f"{marker} was not written"
            mode = new.stat().st_mode & 0o666  # as the umask says; safetensors lets the owner alone read its files
            for path in [*new.rglob("*"), new]:
                if path.is_file():
                    path.chmod(mode)
                if path.is_file() or path.is_dir():
                    flush(path)
            check_free(folder, marker=marker, overwrite=overwrite)
            replace_folder(new, folder, aside=scratch / "old")
            flush(folder.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(handle)


def check_free(folder: Path, *, marker: str, overwrite: bool = False) -> None:
    """Raise unless `folder` can be written: it is absent or empty, or holds `marker` and may be overwritten."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{folder} exists already; choose another folder or allow overwriting it")
    if not (folder / marker).is_file():
        raise FileExistsError(f"{folder} holds no {marker}, so it was not written by embrew; it is left alone")


def check_absent(path: Path) -> None:
    """Raise if a file exists that may not be replaced."""
    if path.is_file() or path.is_dir():
        raise FileExistsError(f"{path} exists already; choose another file or allow overwriting it")


def recover(folder: Path) -> None:
    """Remove what processes left that were killed while they wrote `folder`; running processes are not affected.

    If one was killed after it moved the old folder away and before it moved the new one in, the old one is moved back.
    """
    for scratch in _temporary_paths(folder):
        with _lock_of(scratch) as ours:
            if not ours:
                continue
            old = scratch / "old"
            if old.exists() and not folder.exists():
                os.rename(old, folder)
                logger.warning(
                    "%s was being replaced by a process that was killed; the earlier version is restored", folder
                )
            shutil.rmtree(scratch, ignore_errors=True)


def recover_all(parent: Path) -> None:
    """Call `recover` for every folder in `parent` that a killed process moved away."""
    if parent.is_dir():
        for entry in list(parent.iterdir()):
            match = _TEMPORARY.fullmatch(entry.name)
            if match and entry.is_dir():
                recover(parent / match[1])


def read_unchanged(folder: Path, marker: str, read: Callable[[], Value]) -> Value:
    """Return what `read` returns; call it again if `atomic_folder` replaced the folder meanwhile.

    Without it, one reader might see some files of the old folder and some of the new one.

    Args:
        folder: the folder to read.
        marker: a file that is written with every version of the folder.
        read: reads it.

    Raises:
        OSError: it was replaced every time.
    """
    for _ in range(ATTEMPTS):
        before = _identity(folder / marker)
        try:
            value = read()
        except Exception:
            if _identity(folder / marker) == before:
                raise
        else:
            if _identity(folder / marker) == before:
                return value
    raise OSError(f"{folder} was replaced {ATTEMPTS} times while it was read; try again when it is no longer written")


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_ctime_ns


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of killed processes that were writing `path`."""
    for leftover in _temporary_paths(path):
        with _lock_of(leftover) as ours:
            if ours and not leftover.is_dir():
                leftover.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # folders, on some network file systems
            raise
    finally:
        os.close(handle)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file that is not written to again; copy it where the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_json(path: Place, value: Mapping[str, Any], *, overwrite: bool = True) -> None:
    """Write a JSON file atomically; NaN is refused."""
    with atomic_path(path, overwrite=overwrite) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, overwrite: bool = True) -> int:
    """Write rows as JSON Lines atomically, gzip'd if the name ends in `.gz`; return how many."""
    count, zipped = 0, path.name.endswith(".gz")
    with atomic_path(path, overwrite=overwrite) as temporary, _text_file(temporary, zipped=zipped) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


@contextmanager
def _text_file(path: Path, *, zipped: bool) -> Iterator[IO[str]]:
    """Open a text file to write; a gzip'd one has neither name nor time in it, so that equal texts are equal files."""
    with ExitStack() as stack:
        raw: Any = stack.enter_context(path.open("wb"))
        if zipped:
            raw = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))


def replace_folder(new: Path, folder: Path, *, aside: Path) -> None:
    """Move `new` to `folder`; an existing folder ends up at `new` or, if they cannot be exchanged, at `aside`."""
    if not folder.exists() or not any(folder.iterdir()):
        os.rename(new, folder)  # fails if something is in it by now
    elif not exchange(new, folder):
        os.rename(folder, aside)
        try:
            os.rename(new, folder)
        except OSError:
            os.rename(aside, folder)
            raise


def _move_new(temporary: Path, path: Path) -> None:
    """Move a file to a name that does not exist."""
    try:
        os.link(temporary, path)  # unlike a rename, fails if the name exists
    except OSError:
        check_absent(path)
        os.replace(temporary, path)  # a file system without hard links


def _is_written(folder: Path, *, but: Path) -> bool:
    """Return whether another process writes a folder; processes that only clean up are waited for."""
    for pause in (0.0, 0.1, 0.3):
        time.sleep(pause)
        if not any(is_held(other) for other in _temporary_paths(folder) if other.name != but.name):
            return False
    return True


def _temporary_paths(path: Path) -> list[Path]:
    """Return the temporary files and folders of `path`."""
    named = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(PARTIAL)}")
    try:
        with os.scandir(path.parent) as entries:
            return [Path(entry.path) for entry in entries if named.fullmatch(entry.name)]
    except FileNotFoundError:
        return []


def _locked(make: Callable[[], tuple[int | None, str]]) -> tuple[Path, int]:
    """Create and lock a temporary file or folder; again, if a process that cleans up removed it before the lock."""
    while True:
        handle, name = make()
        try:
            handle = os.open(name, os.O_RDONLY) if handle is None else handle
        except FileNotFoundError:
            continue
        if lock(handle) is not False and os.path.lexists(name):
            return Path(name), handle
        os.close(handle)


@contextmanager
def _lock_of(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder while the block runs; yield what `lock` says, None where there is nothing to lock."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        yield lock(handle)
    finally:
        os.close(handle)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two folders of one file system in one step; return False if system or file system cannot."""
    name, here = ("renameatx_np", -2) if sys.platform == "darwin" else ("renameat2", -100)
    rename: Any = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if rename is None:
        return False
    rename.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    rename.restype = ctypes.c_int
    ctypes.set_errno(0)
    if rename(here, os.fsencode(first), here, os.fsencode(second), 2) == 0:  # 2: RENAME_EXCHANGE, RENAME_SWAP
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


DISK = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or choose another file system",
    errno.EROFS: "choose another disk",
    errno.EIO: "choose another disk, and copy what is on this one",
}
"""What the user can do, by error number of the disk."""

_NUMBERED = re.compile(r"\b(?:os error|errno) (\d+)\b", re.IGNORECASE)  # Rust and Arrow; faiss has no number
_UNNUMBERED = re.compile(r"PytorchStreamWriter failed|unexpected pos |iostream error|\d+ requested and \d+ written")
"""What `torch.save` and numpy's `tofile` say instead of a number."""


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
        if number is None or (temporary is not None and not _is_about(error, temporary)):
            raise
        raise DiskError(number, path) from error


def disk_error(error: Exception, path: Path) -> int | None:
    """Return the error number of the disk that an exception reports; None for other exceptions."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in DISK else None
    message = str(error)
    numbers = [int(digits) for digits in _NUMBERED.findall(message)]
    worded = [number for number in DISK if os.strerror(number) in message]
    number = next((number for number in (*numbers, *worded) if number in DISK), None)
    if number is None and isinstance(error, RuntimeError | OSError) and _UNNUMBERED.search(message):
        return errno.ENOSPC if _is_full(path) else errno.EIO
    return number


def _is_about(error: Exception, temporary: Path) -> bool:
    names = [getattr(error, name, None) for name in ("filename", "filename2")]
    paths = [Path(os.fsdecode(name)) for name in names if isinstance(name, str | bytes | os.PathLike)]
    return not paths or any(_is_in(path, temporary) for path in paths)


def _is_in(path: Path, folder: Path) -> bool:
    path, folder = path.absolute(), folder.absolute()
    return path == folder or folder in path.parents


def _is_full(path: Path) -> bool:
    existing = next((existing for existing in (path, *path.parents) if existing.exists()), None)
    if existing is None:
        return False
    about = os.statvfs(existing)
    return about.f_bavail * about.f_frsize < 1 << 16
