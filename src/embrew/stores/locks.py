"""Locks on prefixes of a store, which has no locks of its own: an object that its holder rewrites while it runs.

The object is created with a condition (`If-None-Match: *` on S3): of several processes, one succeeds. The holder
rewrites it every `RENEW` seconds. Another process that finds it reads it again for `LEASE` seconds: if it changes, the
process is refused; if not, the holder was killed, and the lock is taken over. No clocks of two machines are compared.
Of two processes that take it over, or create it on a server that ignores the condition, one finds the object of the
other when it reads it again, `SETTLE` or `CONFIRM` seconds later. A process that was only suspended, and one that was
late all the same, finds another holder before its next write, and stops.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from embrew.stores.paths import Place, StorePath
from embrew.stores.requests import guards

logger = logging.getLogger(__name__)

LOCK = "__embrew__/lock"
LEASE = 30.0  # seconds
RENEW = 8.0  # seconds
CONFIRM = 0.5  # seconds until an object that was created is read again
SETTLE = 5.0  # the same after a takeover: longer than the request with which another process removes the old object
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
    try:
        with _guarded(lock):
            yield
    except ConnectionError:  # the store does not answer; the next run takes the lock over
        lock.ended.set()
        raise
    finally:
        if not lock.ended.is_set():
            lock.release()


def holder_of(folder: Place) -> str | None:
    """Return what `helping` needs in other processes; None if this process holds no lock on the prefix."""
    lock = _held.get(folder) if isinstance(folder, StorePath) else None
    return lock.holder if lock else None


@contextmanager
def helping(folder: Place, holder: str | None) -> Iterator[None]:
    """Write under a prefix for the process that locked it: each write is refused once that one has lost the lock."""
    if not isinstance(folder, StorePath) or holder is None:
        yield
        return
    with _guarded(_Lock(folder, "", holder)):
        yield


@contextmanager
def _guarded(lock: _Lock) -> Iterator[None]:
    """Check a lock before each write under its prefix."""
    _held[lock.folder], guards[lock.folder.url] = lock, lock.check
    try:
        yield
    finally:
        _held.pop(lock.folder, None)
        guards.pop(lock.folder.url, None)


class _Lock:
    """A lock object, and the thread that rewrites it."""

    def __init__(self, folder: StorePath, doing: str, holder: str = "") -> None:
        self.folder, self.doing = folder, doing
        self.object = folder / LOCK
        self.holder = holder or secrets.token_hex(8)
        self.beats = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._renew, daemon=True)

    def acquire(self) -> None:
        """Create the object, or take over that of a killed process."""
        seen, since, pause = b"", 0.0, CONFIRM
        while not self._create(pause):
            content = self._read()
            if content is None:  # released meanwhile
                continue
            if not seen:
                seen, since = content, time.monotonic()
                logger.warning(
                    "%s is locked by %s; waiting up to %.0f s to see whether it still runs",
                    self.folder,
                    _name(content),
                    LEASE,
                )
            elif content != seen:
                raise FileExistsError(
                    f"another process ({_name(content)}) is {self.doing} {self.folder}; wait until it ends, or choose "
                    "another folder"
                )
            elif time.monotonic() - since > LEASE:
                logger.warning("%s: %s no longer runs; its lock is removed", self.folder, _name(content))
                if self._read() == seen:
                    self.object.unlink(missing_ok=True)
                pause = SETTLE
            time.sleep(LEASE / 30)
        self.thread.start()

    def check(self) -> None:
        """Raise if the object is no longer that of this process."""
        if not self._is_held():
            raise FileExistsError(
                f"another process took over {self.folder}, since this one did not answer for {LEASE:.0f} s; its "
                "finished shards are kept"
            )

    def release(self) -> None:
        """Stop rewriting the object and remove it."""
        self.ended.set()
        self.thread.join()
        try:
            if self._is_held():
                self.object.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s: the lock is not removed (%s); the next run waits %.0f s", self.folder, error, LEASE)

    def _create(self, pause: float) -> bool:
        """Create the object if there is none; return whether it is that of this process, now and after a pause."""
        if self._read() is None:  # asked, since a server may ignore the condition
            with suppress(FileExistsError):  # of another process; or of this one, if the first answer was lost
                self.object.create(self._content())
        if not self._is_held():
            return False
        time.sleep(pause)
        return self._is_held()

    def _renew(self) -> None:
        while not self.ended.wait(RENEW):
            try:
                if not self._is_held() or self.ended.is_set():
                    return
                self.beats += 1
                self.object.write_bytes(self._content())
            except OSError as error:
                logger.info("%s: the lock is not renewed: %s", self.folder, error)

    def _content(self) -> bytes:
        return f"{self.holder} {socket.gethostname()} {os.getpid()} {self.beats}\n".encode()

    def _is_held(self) -> bool:
        content = self._read()
        return content is not None and content.startswith(self.holder.encode())

    def _read(self) -> bytes | None:
        try:
            return self.object.read_bytes()
        except FileNotFoundError:
            return None


def _name(content: bytes) -> str:
    """Return host and process of the holder, for messages."""
    parts = content.decode("utf-8", "replace").split()
    return f"process {parts[2][:20]} on {parts[1][:80]}" if len(parts) > 2 else "another process"
