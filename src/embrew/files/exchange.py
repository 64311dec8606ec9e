"""Exchange two folders in one step, where the operating system supports it."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders of one file system in one step; return False if system or file system cannot."""
    name, here = ("renameatx_np", -2) if sys.platform == "darwin" else ("renameat2", -100)
    rename = _of_libc(name)
    if rename is None:
        return False
    ctypes.set_errno(0)
    if rename(here, os.fsencode(one), here, os.fsencode(other), 2) == 0:  # 2: RENAME_EXCHANGE, RENAME_SWAP
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _of_libc(name: str) -> Callable[..., int] | None:
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        function.restype = ctypes.c_int
    return function
