"""Objects in a store (S3, Google Cloud Storage, the Hugging Face Hub), used like files, through fsspec.

An object appears complete or not at all, but a store cannot rename. Files are therefore written on this machine and put
in one request.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from embrew.stores.requests import opened, repeated
from embrew.stores.stream import open_stream

SCHEMES = ("s3", "gs", "hf")
VERSION = ("ETag", "etag", "generation", "blob_id", "xet_hash", "LastModified", "mtime", "created")
"""Keys of fsspec's `info`, by store, that change when an object is replaced."""

Value = TypeVar("Value")


class Stat(NamedTuple):
    """Size of an object, and what changes if it is replaced."""

    st_size: int
    version: tuple[str, ...]


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
    def parent(self) -> StorePath:
        """The prefix that holds the object."""
        return StorePath(self.url.rpartition("/")[0])

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
        info = self._do(lambda store, path: store.info(path))
        return Stat(int(info["size"] or 0), tuple(str(info.get(key)) for key in VERSION))

    def iterdir(self) -> Iterator[StorePath]:
        """Yield objects and prefixes directly under this prefix, none if there are none."""
        try:
            names = self._do(lambda store, path: store.ls(path, detail=False))
        except FileNotFoundError:
            return
        own = self.url.partition("://")[2]
        entries = sorted({str(name).rstrip("/").rpartition("/")[2] for name in names if str(name).strip("/") != own})
        yield from (self / name for name in entries)

    def glob(self, pattern: str) -> Iterator[StorePath]:
        """Yield what is directly under this prefix and matches a pattern."""
        return (entry for entry in self.iterdir() if fnmatch(entry.name, pattern))

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open an object to read it as a stream; an error is raised if it is replaced meanwhile."""
        assert mode == "rb", "objects are written by put"
        return open_stream(self.url)

    def read_bytes(self) -> bytes:
        """Return the content of an object."""
        return self._do(lambda store, path: store.cat_file(path))

    def write_bytes(self, data: bytes) -> None:
        """Write an object; an earlier one is replaced."""
        self._do(lambda store, path: store.pipe_file(path, data), writes=True)

    def create(self, data: bytes) -> None:
        """Write an object if there is none (`If-None-Match: *` on S3).

        Raises:
            FileExistsError: there is one. It may be this one, if the answer to the first try was lost.
        """
        try:
            self._do(lambda store, path: store.pipe_file(path, data, mode="create"))
        except OSError as error:
            if type(error) is OSError and self.is_file():  # s3fs, where a server's answer names no condition
                raise FileExistsError(f"{self}: exists already") from error
            raise

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove an object."""
        try:
            self._do(lambda store, path: store.rm_file(path), writes=True)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a store has no folders."""

    def put(self, file: Path) -> None:
        """Write a local file as this object.

        Raises:
            OSError: the store has another number of bytes than the file.
        """
        self._do(lambda store, path: store.put_file(str(file), path), writes=True)
        if self.stat().st_size != file.stat().st_size:
            raise OSError(f"{self}: {self.stat().st_size} of {file.stat().st_size} bytes arrived; try again")

    @contextmanager
    def uploaded(self) -> Iterator[Path]:
        """Yield a local file, which becomes this object when the block ends without an error."""
        with _scratch(self) as file:
            yield file
            self.put(file)

    def get(self, file: Path) -> None:
        """Write this object into a local file."""
        self._do(lambda store, path: store.get_file(path, str(file)))

    def _type(self) -> str:
        try:
            return str(self._do(lambda store, path: store.info(path))["type"])
        except FileNotFoundError:
            return ""

    def _do(self, call: Callable[[Any, str], Value], *, writes: bool = False) -> Value:
        """Call a function with the file system and the path in it; again, if it fails for a moment."""
        return repeated(self.url, lambda: call(*opened(self.url)), writes=writes)


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
    if not separator:
        if match := re.match(rf"({'|'.join((*SCHEMES, 'file'))}):/", str(path)):
            raise ValueError(
                f"{str(path)!r} is a local path, since pathlib leaves one slash of a URL; give the URL as a string, "
                f"{match[1]}://…, or a folder of this name by its absolute path"
            )
        return Path(path)
    if scheme == "file":
        if not rest.startswith("/"):
            raise ValueError(f"{path!r} names a host; write file:///FOLDER, or the path alone")
        return Path(rest)
    if "@" in rest.split("/")[0]:
        raise ValueError(
            f"the {scheme}:// URL holds a user name or password before the @, which would appear in logs; remove it "
            "from the URL, and set it in the environment variables or configuration files that the store's tools read"
        )
    if scheme not in SCHEMES:
        schemes = ", ".join(f"{one}://" for one in (*SCHEMES, "file"))
        raise ValueError(f"{path!r}: embrew reads and writes local paths, {schemes}")
    if not rest.strip("/"):
        raise ValueError(f"{path!r} names no bucket; write {scheme}://BUCKET/PREFIX")
    if {".", ".."} & set(rest.split("/")):
        raise ValueError(f"{path!r} has a part . or .., which stores take for a name; write the prefix without it")
    return StorePath(f"{scheme}://{re.sub('/+', '/', rest.strip('/'))}")


@contextmanager
def local_copy(path: Place) -> Iterator[Path]:
    """Yield a local file with the content of a file or object; a copy of an object is removed afterwards.

    Raises:
        FileNotFoundError: there is none.
    """
    if isinstance(path, Path):
        yield path
        return
    with _scratch(path) as file:
        path.get(file)
        yield file


def readable(path: Place) -> Path | BinaryIO:
    """Return what libraries can read: a path, or an open object."""
    return path if isinstance(path, Path) else path.open("rb")


@contextmanager
def _scratch(path: StorePath) -> Iterator[Path]:
    """Yield the path of a local file with the object's name; the folder is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="embrew-"))
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
