"""Identify data independent of their folder: by name, and by the sha256 of the files that are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from embrew.data.beir import is_beir, qrels_files
from embrew.data.formats import SUFFIXES, TABLES
from embrew.data.reading import data_files, expand, find_file, split_files
from embrew.files.checksums import digest_of
from embrew.files.public_paths import base_name

HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def data_identity(
    path: str, *, split: str | None, revision: str | None = None, sha256: Callable[[Path], str]
) -> dict[str, Any]:
    """Return what identifies a data set: `name`, and `sha256` of its files, or `hub` and `revision`.

    For missing files, only `name` is returned. A data set of the Hub is compared by its id and by the revision that the
    recipe names; without a revision, by the id only.

    Args:
        path: path in a recipe.
        split: split of a folder; None: all of its files.
        revision: revision on the Hub.
        sha256: returns the sha256 of a file.
    """
    found: dict[str, Any] = {"name": base_name(path)}
    try:
        text = expand(path)
        place = Path(text)
        if place.exists():
            return {**found, "sha256": files_digest(place, files_of(place, split), sha256)}
    except (ValueError, FileNotFoundError):  # a path stored by name, a variable that is not set, or no such split
        return found
    is_hub_id = HUB_ID.fullmatch(text) and not text.endswith((*SUFFIXES, *TABLES))
    return {**found, "hub": text, "revision": revision} if is_hub_id else found


def files_of(place: Path, split: str | None) -> list[Path]:
    """Return the files of a folder's split (None: of all splits), or the file itself.

    Raises:
        FileNotFoundError: there is no such split.
    """
    if place.is_file():
        return [place]
    if is_beir(place):
        parts = [find_file(place, name) for name in ("corpus", "queries")]
        judged = [file for name, file in qrels_files(place).items() if split in (None, name)]
        return [*(file for file in parts if file is not None), *judged]
    if split is not None:
        return split_files(place, split)
    files = {file for file in place.rglob("*") if file.name.endswith((*SUFFIXES, ".csv", ".tsv", ".tsv.gz"))}
    with suppress(FileNotFoundError):  # data files in subfolders only
        files.update(data_files(place))
    return [file for file in sorted(files) if file.is_file() and not file.name.startswith(".")]


def files_digest(place: Path, files: list[Path], sha256: Callable[[Path], str]) -> str:
    """Return the sha256 of the names, below `place`, and contents of some files."""
    names = [file.relative_to(place).as_posix() if place.is_dir() else "" for file in files]
    return digest_of([[name, sha256(file)] for name, file in zip(names, files, strict=True)])
