"""Locks on prefixes of a store, which has no locks of its own: an object that its holder rewrites while it runs.

The object is created with a condition (`If-None-Match: *` on S3): of several processes, one succeeds. The holder
rewrites it every `RENEW` seconds. Another process that finds it reads it again for `LEASE` seconds: if it changes, the
process is refused; if not, the holder was killed, and the lock is taken over. No clocks of two machines are compared.
A process that was only suspended finds another holder before it writes the next manifest, and stops.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from embrew.files.stores import StorePath

logger = logging.getLogger(__name__)

LOCK = "__embrew__/lock"
LEASE = 30.0  # seconds
RENEW = 8.0  # seconds
UNLOCKED = ("hf",)
"""Stores without a conditional write, where moreover each write is a commit."""

_held: dict[StorePath, _Lock] = {}


@contextmanager
def leased(folder: StorePath, doing: str) -> Iterator[None]:
    """Lock a prefix for this process, as `locks.claimed` locks a folder.

    Raises:
        FileExistsError: another process holds it.
    """
    if folder.url.partition("://")[0] in UNLOCKED:
        logger.warning("%s is in a store without locks; make sure that no other process is %s it", folder, doing)
        yield
        return
    lock = _Lock(folder, doing)
    lock.acquire()
    _held[folder] = lock
    try:
        yield
    except ConnectionError:  # the store does not answer; the next run takes the lock over
        lock.ended.set()
        raise
    finally:
        del _held[folder]
        if not lock.ended.is_set():
            lock.release()


def check_lease(folder: StorePath) -> None:
    """Raise if another process took over the lock of this process.

    Raises:
        FileExistsError: it did.
    """
    if folder in _held:
        _held[folder].check()


class _Lock:
    """A lock object, and the thread that rewrites it."""

    def __init__(self, folder: StorePath, doing: str) -> None:
        self.folder, self.doing = folder, doing
        self.object = folder / LOCK
        self.holder = secrets.token_hex(8)
        self.beats = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._renew, daemon=True)

    def acquire(self) -> None:
        """Create the object, or take over that of a killed process."""
        seen, since = b"", 0.0
        while not self._create():
            found = self._read()
            if found is None or self._is_mine(found):  # released meanwhile, or the answer to the request was lost
                continue
            if not seen:
                seen, since = found, time.monotonic()
                logger.warning(
                    "%s is locked by %s; waiting up to %.0f s to see whether it still runs",
                    self.folder,
                    _name(found),
                    LEASE,
                )
            elif found != seen:
                raise FileExistsError(
                    f"another process ({_name(found)}) is {self.doing} {self.folder}; wait until it ends, or choose "
                    "another folder"
                )
            elif time.monotonic() - since > LEASE:
                logger.warning("%s: %s no longer runs; its lock is removed", self.folder, _name(found))
                self.object.unlink(missing_ok=True)
            time.sleep(LEASE / 30)
        self.thread.start()

    def check(self) -> None:
        """Raise if the object is no longer that of this process."""
        found = self._read()
        if found is None or not self._is_mine(found):
            raise FileExistsError(
                f"another process took over {self.folder}, since this one did not answer for {LEASE:.0f} s; its "
                "finished shards are kept"
            )

    def release(self) -> None:
        """Stop rewriting the object and remove it."""
        self.ended.set()
        self.thread.join()
        try:
            found = self._read()
            if found is not None and self._is_mine(found):
                self.object.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s: the lock is not removed (%s); the next run waits %.0f s", self.folder, error, LEASE)

    def _create(self) -> bool:
        try:
            self.object.create(self._content())
        except FileExistsError:
            found = self._read()
            return found is not None and self._is_mine(found)
        return True

    def _renew(self) -> None:
        while not self.ended.wait(RENEW):
            try:
                found = self._read()
                if found is None or not self._is_mine(found) or self.ended.is_set():
                    return
                self.beats += 1
                self.object.write_bytes(self._content())
            except OSError as error:
                logger.info("%s: the lock is not renewed: %s", self.folder, error)

    def _content(self) -> bytes:
        return f"{self.holder} {socket.gethostname()} {os.getpid()} {self.beats}\n".encode()

    def _is_mine(self, found: bytes) -> bool:
        return found.startswith(self.holder.encode())

    def _read(self) -> bytes | None:
        try:
            return self.object.read_bytes()
        except FileNotFoundError:
            return None


def _name(found: bytes) -> str:
    """Return host and process of the holder, for messages."""
    parts = found.decode("utf-8", "replace").split()
    return f"process {parts[2][:20]} on {parts[1][:80]}" if len(parts) > 2 else "another process"
