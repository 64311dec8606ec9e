"""Files that are mapped into memory when they are opened, and compared with their sha256 at their first read."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from embrew.files.reading import CONTENT


class MappedFile:
    """A file that is read through a memory map; it stays readable when another file gets its name.

    Args:
        path: the file.
        sha256: that of its bytes, hexadecimal.
        repair: what the user should do if it is missing or damaged.

    Raises:
        ValueError: there is no such file, or it is empty.
    """

    def __init__(self, path: Path, sha256: str, *, repair: str) -> None:
        self.path, self.sha256, self._repair = path, sha256, repair
        self._lock, self._verified = threading.Lock(), False
        if not path.is_file():
            raise self.changed()
        with path.open("rb") as file:
            self._about = os.fstat(file.fileno())
            if not self._about.st_size:
                raise self.changed()
            self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def changed(self) -> ValueError:
        """Return the error for a file that is missing or damaged."""
        return ValueError(f"{self.path} is missing or has changed since it was written; {self._repair}")

    def verified(self) -> mmap.mmap:
        """Return the content; the first call compares its sha256.

        Raises:
            ValueError: it differs.
        """
        if not self._verified:
            with self._lock:  # threads that wait here find it verified
                if not self._verified and hashlib.sha256(self._content).hexdigest() != self.sha256:
                    raise self.changed()
                self._verified = True
        return self._content

    def array(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the array of an `.npy` file, which is not copied and not verified.

        Raises:
            ValueError: it holds another array, or none.
        """
        self._content.seek(0)
        try:
            version = np.lib.format.read_magic(self._content)
            header = np.lib.format.read_array_header_1_0(self._content) if version == (1, 0) else None
        except CONTENT as error:
            raise self.changed() from error
        begin = self._content.tell()
        size = begin + math.prod(shape) * np.dtype(dtype).itemsize
        if header != (shape, False, np.dtype(dtype)) or len(self._content) != size:
            raise self.changed()
        return np.frombuffer(self._content, dtype, offset=begin).reshape(shape)

    def link_or_copy_to(self, path: Path) -> None:
        """Hard-link the file; write a copy if that fails, it is another user's, or another file has its name by now."""
        if self._about.st_uid == os.geteuid():  # another's could not be given the permissions of new files
            with suppress(OSError):
                os.link(self.path.resolve(), path)
                if os.path.samestat(path.lstat(), self._about):
                    return
        path.unlink(missing_ok=True)
        path.write_bytes(self._content)

    def release(self) -> None:
        """Let the system take back the memory of the pages that were read; they are read again when needed."""
        self._content.madvise(mmap.MADV_DONTNEED)
