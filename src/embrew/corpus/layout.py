"""Files of a folder of vectors: Parquet shards, and in `__embrew__` what readers of Parquet folders must not read.

Most readers take every file of a folder for Parquet. They ignore a folder whose name begins with two underscores;
one underscore is not enough for `datasets`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from embrew.files.locks import claimed

logger = logging.getLogger(__name__)

ABOUT = "__embrew__"
MANIFEST = f"{ABOUT}/vectors.json"
REJECTS = f"{ABOUT}/rejects.jsonl"
BESIDE = {REJECTS: "rejects.jsonl", MANIFEST: "embrew-vectors.json"}
"""Names of the same files in folders of earlier versions: beside the shards."""


def manifest_name(folder: Path) -> str:
    """Name of a folder's manifest; that of earlier versions where only it exists."""
    old = BESIDE[MANIFEST]
    return old if (folder / old).is_file() and not (folder / MANIFEST).is_file() else MANIFEST


def move_beside(folder: Path) -> None:
    """Move the files of an earlier version's folder into `__embrew__`; the manifest last, so that it can be killed."""
    if manifest_name(folder) == MANIFEST:
        return
    (folder / ABOUT).mkdir(exist_ok=True)
    for name, old in BESIDE.items():
        if (folder / old).is_file():
            (folder / old).replace(folder / name)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed run."""
    for name in ("part-*.parquet", *BESIDE, *BESIDE.values()):
        path = folder / name
        for leftover in path.parent.glob(f".{path.name}.*"):
            leftover.unlink()
    if (folder / ABOUT).is_dir() and not any((folder / ABOUT).iterdir()):
        (folder / ABOUT).rmdir()


def scratch_of(folder: Path) -> Path:
    """Where an update makes the next version of a folder: beside it, hidden."""
    folder = folder.resolve()
    return folder.parent / f".{folder.name}.update"


def restore(folder: Path) -> None:
    """Put a folder back that an update had moved away when it was killed, where folders cannot be exchanged."""
    scratch = scratch_of(folder)
    if folder.exists() or not (scratch / "old").exists():
        return
    try:
        with claimed(scratch, "updating with"):
            os.rename(scratch / "old", folder.resolve())
            logger.warning("%s was being replaced by an update that was killed; it is there again, as before", folder)
    except FileExistsError:  # the update still runs, and will have put the new version there in a moment
        return
