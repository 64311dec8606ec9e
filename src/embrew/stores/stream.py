"""Read an object of a store as a stream."""

from __future__ import annotations

import errno
import io
from typing import Any, BinaryIO, cast

from embrew.stores.requests import opened, repeated

BLOCK = 8 << 20  # bytes per request


def open_stream(url: str) -> BinaryIO:
    """Open an object for reading; an error is raised if it is replaced meanwhile, where the store can tell."""
    return cast(BinaryIO, io.BufferedReader(_Stream(url), BLOCK))


class _Stream(io.RawIOBase):
    """An open object; a range that cannot be read is requested again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._at = 0

        def begin() -> Any:
            store, name = opened(url)
            return store.open(name, "rb", cache_type="none")

        self._file = repeated(self._url, begin)
        self._size = repeated(self._url, lambda: int(self._file.seek(0, io.SEEK_END)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence], 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(self._size - self._at, 0))
        data = repeated(self._url, lambda: self._range(wanted)) if wanted else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _range(self, size: int) -> bytes:
        self._file.seek(self._at)
        data: bytes = self._file.read(size)
        if len(data) != size:
            raise OSError(errno.EIO, f"{len(data)} of {size} bytes arrived")
        return data
