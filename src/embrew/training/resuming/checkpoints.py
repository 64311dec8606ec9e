"""Complete checkpoints: a manifest with the sha256 of every file, written last."""

from __future__ import annotations

import fnmatch
import json
import logging
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers.trainer_pt_utils import safe_globals

from embrew.files.checksums import file_sha256
from embrew.files.names import is_safe_name
from embrew.files.writing import flush, write_json

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"


def seal(checkpoint: Path) -> None:
    """Flush a checkpoint's files to disk and write its manifest, which makes it complete."""
    hashes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            flush(path)
            hashes[str(path.relative_to(checkpoint))] = file_sha256(path)
    write_json(checkpoint / MANIFEST, hashes)


def is_whole(checkpoint: Path, needed: Collection[str] = ()) -> bool:
    """Return whether the manifest lists all needed files, and every file in it exists with its sha256.

    Args:
        checkpoint: a folder.
        needed: file names, as patterns; each must match a file of the manifest.
    """
    try:
        hashes = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(hashes, dict) or not hashes or not all(_is_entry(*entry) for entry in hashes.items()):
        return False
    if not all(fnmatch.filter(hashes, pattern) for pattern in needed):
        return False
    return all((checkpoint / name).is_file() and file_sha256(checkpoint / name) == sha for name, sha in hashes.items())


def _is_entry(name: str, sha256: Any) -> bool:
    """Whether a manifest entry is valid: the name of a file within the checkpoint, and a sha256."""
    return is_safe_name(name) and isinstance(sha256, str) and re.fullmatch(r"[0-9a-f]{64}", sha256) is not None


def newest(folder: Path, needed: Collection[str] = ()) -> Path | None:
    """Return the newest complete checkpoint; log and skip incomplete ones. `needed`: see `is_whole`."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        if is_whole(checkpoint, needed):
            return checkpoint
        logger.warning("%s is incomplete (interrupted while it was written, or damaged) and is skipped", checkpoint)
    return None


def not_state(checkpoint: Path | None) -> str:
    """Return the message for a checkpoint file that holds other objects than a trainer's state, or is damaged."""
    named = [str(path.name) for path in sorted((checkpoint or Path()).glob("*.pt*")) if not _is_state(path)]
    return (
        f"{checkpoint}: {', '.join(named) or 'a file'} holds other objects than a trainer's tensors and numbers; it is "
        "not read, since pickled objects can run code. Remove this checkpoint: --resume then takes an earlier one, or "
        "starts the stage again"
    )


def _is_state(path: Path) -> bool:
    try:
        with safe_globals():  # numpy's random state, as transformers allows it
            torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, OSError, RuntimeError, EOFError):
        return False
    return True


def rotate(folder: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest `keep`; incomplete ones stay, and `newest` logs them."""
    whole = [c for c in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True) if (c / MANIFEST).is_file()]
    for checkpoint in whole[keep:]:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1
