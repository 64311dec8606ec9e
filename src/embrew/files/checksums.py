"""The sha256 of a folder's files in `checksums.json`, and of lone files (JSON, safetensors) in the files themselves.

Of a JSON object, the sha256 is that of its values (`digest_of`), whatever the white space and the order of keys.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from embrew.files.formats import CHECKSUMS, OtherFormat

logger = logging.getLogger(__name__)
NAME = "checksums.json"
CARD = "README.md"
COPY = "Copy the folder again from its source"
LARGE = 1 << 24  # bytes: larger files are read once per process while inode, size and times stay the same
READERS = 4  # threads that read large files; more are not faster on one disk

_hashed: dict[tuple[int, int], tuple[tuple[int, int], str]] = {}
_lock = threading.Lock()


class Damaged(ValueError):
    """Files of a folder are missing, were added or have changed since they were written."""


def file_sha256(path: Path, *, cached: bool = False) -> str:
    """Return the sha256 of a file's bytes, hexadecimal.

    Args:
        path: the file.
        cached: return the sha256 found earlier in this process where inode, size and time of change are still the same,
            also by another name of the file (a hard link); only for files of 16 MiB or more.
    """
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        key, now = (about.st_dev, about.st_ino), (about.st_size, about.st_mtime_ns)
        if cached and about.st_size >= LARGE:
            with _lock:
                hashed = _hashed.get(key)
            if hashed is not None and hashed[0] == now:
                return hashed[1]
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if about.st_size >= LARGE:
        with _lock:
            _hashed[key] = now, sha256
    return sha256


def content_hash(files: Sequence[Path]) -> str:
    """Return the sha256 of the names and bytes of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with open(file, "rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def digest_of(values: Any) -> str:
    """Return the sha256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_checksums(folder: Path) -> None:
    """Write `checksums.json`: the sha256 of every file below a folder. Call it after all other files are written.

    Hidden files and folders are left out, and so are the card, which users may edit, and subfolders that have their own
    checksums.
    """
    files = {name: file_sha256(folder / name, cached=True) for name in sorted(_files(folder)) if name != CARD}
    text = json.dumps(
        {"format": CHECKSUMS.number, "files": files, "sha256": digest_of(files)}, indent=2, ensure_ascii=False
    )
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def check_files(folder: Path, *, read: Collection[str] = (), large: bool = True, repair: str = COPY) -> bool:
    """Compare the files of a folder with its `checksums.json`. Files that it does not list are ignored.

    Args:
        folder: a folder that `write_checksums` was called for.
        read: names of files, without folders, that a reader of the folder would read. One that is not listed was added
            later, and is refused.
        large: also read files of 16 MiB or more, those excepted whose sha256 this process knows.
        repair: what the user should do about a damaged folder.

    Returns:
        Whether the folder has a `checksums.json` to compare with.

    Raises:
        Damaged: a file is missing, was added or has changed; names the first few and says what to do.
    """
    listed = read_checksums(folder)
    if listed is None:
        return False
    hashes = _hashes(folder, listed, large=large)
    missing = [name for name, sha256 in hashes.items() if sha256 is None]
    changed = [name for name, sha256 in hashes.items() if sha256 not in (None, listed[name])]
    added = list(_added(folder, listed, read)) if read else []
    problems = [
        f"{name} {what}"
        for names, what in ((missing, "is missing"), (changed, "has changed"), (added, "was added"))
        for name in names
    ]
    if problems:
        raise _damaged(folder, problems, changed, repair)
    return True


def check_listed(path: Path) -> None:
    """Compare one file with the `checksums.json` of its folder, or of the two folders above, where one lists it.

    Raises:
        Damaged: it has changed.
    """
    for folder in list(path.absolute().parents)[:3]:
        name = path.absolute().relative_to(folder).as_posix()
        listed = (read_checksums(folder) or {}).get(name)
        if listed is not None and path.is_file() and file_sha256(path, cached=True) != listed:
            raise _damaged(folder, [f"{name} has changed"], [name], COPY)


def is_intact(folder: Path) -> bool:
    """Return whether the files of a folder are as its `checksums.json` says, if it has one; log what is not."""
    try:
        check_files(folder)
    except Damaged as error:
        logger.warning("%s. It is made again", error)
        return False
    return True


def _damaged(folder: Path, problems: Sequence[str], changed: Sequence[str], repair: str) -> Damaged:
    """Return the error that names the first problems of a folder and says what to do."""
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return Damaged(
        f"{folder} has changed since it was written: {', '.join(problems[:3])}{more}. {repair}; if you changed it on "
        f"purpose, remove {NAME} and it opens unverified" + hard_links([folder / name for name in changed])
    )


def hard_links(paths: Iterable[Path]) -> str:
    """Return what to do about changed files that are hard links, which another program edits under another name."""
    links = [str(path) for path in paths if path.stat().st_nlink > 1]
    if not links:
        return ""
    return (
        f". {', '.join(links)}: a hard link, one file with one of another folder, which was edited in place: delete "
        "it, then copy the original file there; to keep the edited one, save it to another folder first"
    )


def read_checksums(folder: Path) -> Mapping[str, str] | None:
    """Return the sha256 by file name that a folder's `checksums.json` lists; None where there is no such file.

    Raises:
        Damaged: the file itself is damaged.
        OtherFormat: it has another format number than this embrew reads, or none.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        return None
    repair = f"copy the folder again, or remove {NAME} and it opens unverified"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        CHECKSUMS.check(values, path)
        files = values["files"]
        is_intact = values["sha256"] == digest_of(files) and _are_names(files)
    except OtherFormat:
        raise
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged ({error}); {repair}") from error
    if not is_intact:
        raise Damaged(f"{path} is damaged; {repair}")
    return files


def _are_names(files: Any) -> bool:
    """Return whether a parsed value lists names of files within a folder and their sha256."""
    paths = [PurePosixPath(name) for name in files] if isinstance(files, dict) else [PurePosixPath("..")]
    return not any(path.is_absolute() or ".." in path.parts for path in paths)


def _hashes(folder: Path, listed: Mapping[str, str], *, large: bool) -> dict[str, str | None]:
    """Return the sha256 of files by name, read in parallel; None for a missing one; the listed one of a skipped one."""

    def sha256_of(name: str) -> str | None:
        path = folder / name
        if not path.is_file():
            return None
        skipped = not large and path.stat().st_size >= LARGE
        return listed[name] if skipped else file_sha256(path, cached=True)

    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(listed, pool.map(sha256_of, listed), strict=True))


def _added(folder: Path, listed: Collection[str], read: Collection[str]) -> Iterator[str]:
    """Yield files of certain names that are not listed, from the folders that hold listed files."""
    for subfolder in sorted({PurePosixPath(name).parent for name in listed} | {PurePosixPath()}):
        if (folder / subfolder).is_dir():
            names = {path.name for path in (folder / subfolder).iterdir() if path.is_file()}
            paths = (str(subfolder / name) for name in sorted(names & set(read)))
            yield from (path for path in paths if path not in listed)


def _files(folder: Path) -> Iterator[str]:
    for directory, folders, names in os.walk(folder):
        here = Path(directory)
        below = here != folder
        if below and NAME in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (below or name != NAME):
                yield (here / name).relative_to(folder).as_posix()


SHA256 = "sha256"
UNSEALED = {SHA256: "0" * 64}
"""Metadata of a safetensors file, for `seal_file`."""
CHANGED = f"it has changed since it was written: its {SHA256} differs"
_warned: set[str] = set()
MAX_HEADER_BYTES = 100_000_000  # bytes of a safetensors header, by its own definition


def content_sha256(values: Any) -> str:
    """Return the sha256 of a value as it is read again from JSON: keys are strings, and tuples lists."""
    return digest_of(json.loads(json.dumps(values)))


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the sha256 of the rest of it."""
    return {**values, SHA256: content_sha256(values)}


def unsealed(values: Mapping[str, Any], path: object, what: str) -> dict[str, Any]:
    """Return a JSON object without its sha256, which is compared; it is logged once that a kind of file has none.

    Args:
        values: content of the file.
        path: the file.
        what: what files of its kind are called.

    Raises:
        ValueError: the sha256 differs.
    """
    rest = {key: value for key, value in values.items() if key != SHA256}
    if SHA256 not in values:
        _warn_unsealed(path, what)
    elif values[SHA256] != content_sha256(rest):
        raise ValueError(f"{CHANGED} (if you changed it on purpose, remove the key {SHA256})")
    return rest


def seal_file(path: Path, name: str) -> None:
    """Replace `UNSEALED` in the metadata of a safetensors file by the sha256 of its bytes, with its name in that place.

    So two files whose names were exchanged are noticed.
    """
    offset, _, sha256 = _of_file(path, name)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(sha256.encode())


def check_sealed_file(path: Path) -> None:
    """Compare a safetensors file with the sha256 that it holds; it is logged once that a file has none.

    Raises:
        ValueError: it differs.
    """
    offset, stored, sha256 = _of_file(path, path.name)
    if not offset:
        _warn_unsealed(path, "safetensors files")
    elif stored != sha256:
        raise ValueError(CHANGED)


def _of_file(path: Path, name: str) -> tuple[int, str, str]:
    """Return where a safetensors file holds its sha256 (0: nowhere), that sha256, and that of the rest and its name."""
    with path.open("rb") as file:
        size = file.read(8)
        head = size + file.read(min(int.from_bytes(size, "little"), MAX_HEADER_BYTES))
        match = re.search(rb'"sha256":"([^"]{64})"', head)
        start, end = match.span(1) if match else (0, 0)
        digest = hashlib.sha256(head[:start] + name.encode() + head[end:])
        hashlib.file_digest(file, lambda: digest)
    return start, head[start:end].decode("latin-1"), digest.hexdigest()


def _warn_unsealed(path: object, what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        logger.warning(
            "%s has no %s, as one made by hand or by an earlier version: it is read, and changes of it are not noticed "
            "(said once for %s)",
            path,
            SHA256,
            what,
        )
