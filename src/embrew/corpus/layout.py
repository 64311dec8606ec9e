"""Files of a folder of vectors: Parquet shards, and in `__embrew__` the files that readers of Parquet must ignore.

Most readers read every file of a folder as Parquet. They ignore a folder whose name begins with two underscores;
one underscore is not enough for `datasets`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from embrew.files.writing import check_free, claimed
from embrew.stores.paths import Place, StorePath

logger = logging.getLogger(__name__)

ABOUT = "__embrew__"
MANIFEST = f"{ABOUT}/vectors.json"
REJECTS = f"{ABOUT}/rejects.jsonl"


def remove_leftovers(folder: Place) -> None:
    """Remove the temporary files of a killed run; in a store there are none."""
    if isinstance(folder, StorePath):
        return
    for name in ("part-*.parquet", REJECTS, MANIFEST):
        path = folder / name
        for leftover in path.parent.glob(f".{path.name}.*"):
            leftover.unlink()
    if (folder / ABOUT).is_dir() and not any((folder / ABOUT).iterdir()):
        (folder / ABOUT).rmdir()


def check_writable(folder: Place) -> None:
    """Raise if a folder holds files, and no manifest."""
    if isinstance(folder, Path):
        check_free(folder, marker=MANIFEST, overwrite=True)
    elif not (folder / MANIFEST).is_file() and any(entry.name != ABOUT for entry in folder.iterdir()):
        raise FileExistsError(f"{folder} holds no {MANIFEST}, so it was not written by embrew; it is left alone")


def scratch_of(folder: Path) -> Path:
    """Return the hidden folder, in the same parent folder, in which an update writes the next version."""
    folder = folder.resolve()
    return folder.parent / f".{folder.name}.update"


def restore(folder: Place) -> None:
    """Move a folder back that a killed update had moved away, on file systems that cannot exchange folders."""
    if isinstance(folder, StorePath):
        return
    scratch = scratch_of(folder)
    if folder.exists() or not (scratch / "old").exists():
        return
    try:
        with claimed(scratch, "updating with"):
            os.rename(scratch / "old", folder.resolve())
            logger.warning(
                "%s was being replaced by an update that was killed; the earlier version is restored", folder
            )
    except FileExistsError:  # the update still runs and is about to move the new version in
        return
