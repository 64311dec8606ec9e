"""Probes of disks: free space, and features of the file systems, tried in a temporary folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from embrew.doctor.finding import Finding
from embrew.files.writing import exchange, flush

LITTLE, NONE = 5e9, 1e8  # bytes below which a warning is given, and below which nothing can be written


def space(folder: Path) -> Iterator[Finding]:
    """Report free space for results, for downloaded models and for temporary files."""
    from huggingface_hub.constants import HF_HOME

    for name, place in (("output", folder), ("HF_HOME", Path(HF_HOME)), ("TMPDIR", Path(tempfile.gettempdir()))):
        there = next((path for path in (place, *place.absolute().parents) if path.exists()), Path("/"))
        free = shutil.disk_usage(there).free
        details = {"path": str(place.absolute()), "free": free, "exists": place.exists()}
        value = f"{free / 1e9:.1f} GB free, {place.absolute()}"
        if free < NONE:
            yield Finding(f"disk, {name}", "failed", value, "free some space; nothing can be written there", details)
        elif free < LITTLE:
            advice = "free some space: a model of 1 billion weights takes 2 to 4 GB, a run several times that"
            yield Finding(f"disk, {name}", "warning", value, advice, details)
        else:
            yield Finding(f"disk, {name}", "ok", value, details=details)


def file_system(folder: Path) -> Iterator[Finding]:
    """Test whether a folder is writable and its file system can exchange folders, lock, link and flush."""
    try:
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".embrew-doctor-")
    except OSError as error:
        advice = "choose a folder that you may write to"
        yield Finding("file system", "failed", f"{folder.absolute()}: {error.strerror}", advice)
        return
    with scratch as name:
        found = {what: bool(tried(Path(name))) for what, tried in TRIED.items()}
    missing = [what for what, works in found.items() if not works]
    if not missing:
        yield Finding("file system", "ok", ", ".join(found), details=found)
    for what in missing:
        yield Finding("file system", "warning", f"no {what}", ADVICE[what], found)


def _exchange(place: Path) -> bool:
    one, other = place / "one", place / "other"
    one.mkdir()
    other.mkdir()
    (one / "file").write_text("one")
    return exchange(one, other) and (other / "file").is_file() and not (one / "file").exists()


def _lock(place: Path) -> bool:
    path = place / "lock"
    first, second = os.open(path, os.O_CREAT | os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False  # both hold it
    except OSError:
        return False
    finally:
        os.close(first)
        os.close(second)


def _link(place: Path) -> bool:
    (place / "linked").write_text("text")
    try:
        os.link(place / "linked", place / "link")
    except OSError:
        return False
    return (place / "link").stat().st_ino == (place / "linked").stat().st_ino


def _flush(place: Path) -> bool:
    (place / "flushed").write_text("text")
    try:
        flush(place / "flushed")
        flush(place)
    except OSError:
        return False
    return True


TRIED = {"exchange of folders": _exchange, "locks": _lock, "hard links": _link, "flush to disk": _flush}
ADVICE = {
    "exchange of folders": "folders are replaced in two steps; after a killed process, the next start recovers them",
    "locks": "do not start two processes that write one folder; the second would not be refused",
    "hard links": "weights of local models are copied into saved encoders, which takes more space",
    "flush to disk": "after a power failure, files that were finished may be lost",
}
