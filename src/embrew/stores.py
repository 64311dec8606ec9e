"""Objects in a store (S3, Google Cloud Storage, the Hugging Face Hub), used like files, through fsspec.

An object appears whole or not at all, but a store cannot rename: files are written on this machine and put in one
request. The store's client sends requests again that fail for a moment.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from embrew.files.writing import DISK

logger = logging.getLogger(__name__)

SCHEMES = {"s3": '"embrew[s3]"', "gs": '"embrew[gs]"', "hf": "huggingface_hub"}
"""Schemes of URLs, and the package to install for each."""
LOCK = "__embrew__/lock"
BLOCK = 8 << 20  # bytes per request
SECRETS = (
    (r"\?[^\s\"')]+", "?…"),  # query strings, which may hold signatures
    (r"//[^\s/:@]+:(?!\d+/)\S*@|//[^\s/]*@", "//…@"),  # user and password of a URL, also with a slash in it
    (r"(?i)\b(bearer)\s+[^\s\"',\\]+", r"\1 …"),
    (r"(?i)\b(authorization['\"]?\s*[:=]\s*b?['\"]?)(?!bearer)[^\"',}]+", r"\1…"),
    (r"\bhf_[A-Za-z0-9]+", "hf_…"),
)
"""Patterns of what may hold a credential in an error's message, and what is shown in its place."""


class Stat(NamedTuple):
    """Size of an object, and all that the store says of it, which changes if it is replaced."""

    st_size: int
    info: dict[str, Any]


@dataclass(frozen=True, order=True)
class StorePath:
    """An object, or all objects under a prefix, with the methods of `Path` that readers and writers here use.

    Attributes:
        url: `s3://bucket/key`, without a slash at the end.

    Raises:
        ValueError: `::` is in the URL, from the user or from a listing.
    """

    url: str

    def __post_init__(self) -> None:
        if "::" in self.url:  # fsspec would read and write the object whose name ends there
            raise ValueError(
                f"{self.url.partition('::')[0]!r} is followed by '::', which fsspec takes for a chain of URLs; "
                "choose another prefix, or rename the object"
            )

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def suffixes(self) -> list[str]:
        """The suffixes of the name."""
        return PurePosixPath(self.name).suffixes

    def exists(self) -> bool:
        """Return whether there is an object of this name, or any object under this prefix."""
        return self._type() != ""

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        return self._type() == "file"

    def is_dir(self) -> bool:
        """Return whether there is any object under this prefix."""
        return self._type() == "directory"

    def stat(self) -> Stat:
        """Return size and version of an object."""
        with self._store() as (store, path):
            info = store.info(path)
        return Stat(int(info["size"] or 0), info)

    def iterdir(self) -> Iterator[StorePath]:
        """Yield objects and prefixes directly under this prefix, none if there are none."""
        names: set[str] = set()
        with suppress(FileNotFoundError), self._store() as (store, path):
            names = {str(name).strip("/") for name in store.ls(path, detail=False)} - {path.strip("/")}
        yield from (self / name.rpartition("/")[2] for name in sorted(names))

    def glob(self, pattern: str) -> Iterator[StorePath]:
        """Yield what is directly under this prefix and matches a pattern."""
        return (entry for entry in self.iterdir() if fnmatch(entry.name, pattern))

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open an object to read it as a stream; on S3, an error is raised if it is replaced meanwhile."""
        assert mode == "rb", "objects are written as a whole"
        return cast(BinaryIO, io.BufferedReader(_Stream(self), BLOCK))

    def read_bytes(self) -> bytes:
        """Return the content of an object."""
        with self._store() as (store, path):
            return bytes(store.cat_file(path))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove an object."""
        with suppress(*[FileNotFoundError] * missing_ok), self._store() as (store, path):
            store.rm_file(path)

    @contextmanager
    def uploaded(self) -> Iterator[Path]:
        """Yield a local file, which becomes this object when the block ends without an error."""
        with tempfile.TemporaryDirectory(prefix="embrew-") as folder:
            file = Path(folder, self.name)
            yield file
            with self._store() as (store, path):
                store.put_file(str(file), path)

    def _type(self) -> str:
        try:
            with self._store() as (store, path):
                return str(store.info(path)["type"])
        except FileNotFoundError:
            return ""

    @contextmanager
    def _store(self) -> Iterator[tuple[Any, str]]:
        """Yield fsspec's file system and the path in it; errors name the URL, and say what to do."""
        from fsspec.core import url_to_fs

        try:
            store, path = url_to_fs(self.url, use_listings_cache=False)
            if self.url.startswith("hf://"):  # keeps listings all the same
                store.invalidate_cache(str(path))
            yield store, str(path)
        except Exception as error:
            raise explain_error(error, self.url) from None


class _Stream(io.RawIOBase):
    """An open object, whose errors are explained."""

    def __init__(self, path: StorePath) -> None:
        self._path = path
        with path._store() as (store, name):
            self._file = store.open(name, "rb", cache_type="none")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        with self._path._store():
            return int(self._file.readinto(buffer))


@contextmanager
def locked(folder: StorePath, doing: str) -> Iterator[None]:
    """Lock a prefix for this process, by an object that says who holds it; a killed process leaves it.

    Raises:
        FileExistsError: the object is there; says who wrote it, and how to remove it.
    """
    lock = folder / LOCK
    holder = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if not lock.is_file():  # asked, since a server may ignore the condition
        with suppress(FileExistsError), lock._store() as (store, path):
            store.pipe_file(path, holder.encode(), mode="create")
    present = lock.read_bytes().decode("utf-8", "replace")
    if present != holder:
        raise FileExistsError(
            f"{present[:200]} is {doing} {folder}; wait until it ends, or choose another folder. If it no longer runs, "
            f'remove its lock: python -c "import fsspec; store, path = fsspec.url_to_fs({lock.url!r}); '
            'store.rm_file(path)"'
        )
    try:
        yield
    finally:
        try:
            lock.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s is not removed: %s", lock, error)


Place = Path | StorePath
"""A local file or folder, or one in a store."""


def place_of(path: str | Path | StorePath) -> Place:
    """Return the place of a path or URL; `file://` URLs are local paths.

    Raises:
        ValueError: the URL has another scheme, names no bucket, holds credentials, `::`, `.` or `..`, or was made a
            `Path`.

    Examples:
        >>> place_of("file:///data/corpus.jsonl"), place_of("s3://bucket/corpus/")
        (PosixPath('/data/corpus.jsonl'), StorePath(url='s3://bucket/corpus'))
    """
    if isinstance(path, StorePath):
        return path
    scheme, separator, rest = str(path).partition("://")
    if match := re.match(rf"({'|'.join((*SCHEMES, 'file'))}):/(?!/)", str(path)):
        raise ValueError(
            f"{str(path)!r} is a local path, since pathlib leaves one slash of a URL; give the URL as a string, "
            f"{match[1]}://…, or a folder of this name by its absolute path"
        )
    if not separator:
        return Path(path)
    if scheme == "file" and rest.startswith("/"):
        return Path(rest)
    parts = re.split("/+", rest.strip("/"))
    if scheme not in SCHEMES or not parts[0] or "@" in parts[0] or {".", ".."} & {*parts}:
        name = f"the {scheme}:// URL" if "@" in rest else repr(path)  # it would appear in logs
        raise ValueError(
            f"{name} cannot be used; give a local path, file:///FOLDER, or s3://, gs:// or hf:// with BUCKET/PREFIX, "
            "without parts . and .., and without a user name or password, which the store's tools read from "
            "environment variables or configuration files"
        )
    return StorePath(f"{scheme}://{'/'.join(parts)}")


@contextmanager
def local_copy(path: Place) -> Iterator[Path]:
    """Yield a local file with the content of a file or object; a copy of an object is removed afterwards.

    Raises:
        FileNotFoundError: there is none.
    """
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="embrew-") as folder:
        file = Path(folder, path.name)
        with path._store() as (store, name):
            store.get_file(name, str(file))
        yield file


def explain_error(error: Exception, url: str) -> Exception:
    """Return the error to raise in place of a client's: it names the URL, the reason and what to do, no credential."""
    scheme, _, rest = url.partition("://")
    name, bucket = type(error).__name__, repr(rest.partition("/")[0])
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = next(iter(text.splitlines()), "") or name
    for pattern, replacement in SECRETS:
        reason = re.sub(pattern, replacement, reason)
    reason = reason[:200]
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "code", None)
    if isinstance(error, ImportError):
        todo = f"install it with: pip install {SCHEMES[scheme]}"
        return ImportError(f"{scheme}:// needs a package that is not installed ({reason}); {todo}")
    if isinstance(error, PermissionError) or status in (401, 403) or re.search("Credential|Profile|Token", name):
        return PermissionError(
            f"{url}: the store refuses access, or there are no credentials ({reason}); check those in the environment "
            f"or in the configuration files of the store, and what they may do in {bucket}"
        )
    if isinstance(error, FileNotFoundError) or status == 404:
        return FileNotFoundError(f"{url}: not found ({reason}); check the name, and that of {bucket}")
    if isinstance(error, FileExistsError):
        return FileExistsError(f"{url}: exists already")
    if name == "FileExpired":
        return OSError(f"{url}: it was replaced while it was read; wait until it is written, and try again")
    if isinstance(error, OSError) and error.errno in DISK and error.errno != errno.EIO:
        return error  # the disk of this machine
    return ConnectionError(f"{url}: no answer, or an error of the store ({reason}); try again later")
