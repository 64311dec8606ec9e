"""Scores that are computed once per row and stored on disk while a stage is in progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import distributed

from embrew.distributed import rank, world_size
from embrew.files.writing import atomic_path

logger = logging.getLogger(__name__)
UNIT = 1024  # rows per file: a killed run computes at most these again
Scores = list[float]


class Unit(NamedTuple):
    """The rows of one file: their indices in the data set, and their keys."""

    rows: range
    keys: Sequence[str]
    path: Path | None


def keyed_scores(
    keys: Sequence[str],
    compute: Callable[[range], list[Scores]],
    *,
    folder: Path | None,
    origin: str,
    unit: int = UNIT,
) -> list[Scores]:
    """Return the scores of every row: read if a file has them under the row's key, else computed and written.

    Files are written atomically, one per unit; several processes share the work. A unit is always computed as a whole,
    so that a resumed run gets the same numbers.

    Args:
        keys: key of each row, hexadecimal digits of one length; rows with equal keys have equal scores.
        compute: function from row indices to scores.
        folder: folder of the files; None: nothing is written.
        origin: identifies the model and the settings; files of another origin are not read.
        unit: rows per file.
    """
    starts = range(0, len(keys), unit)
    units = []
    for number, start in enumerate(starts):
        rows = range(start, min(start + unit, len(keys)))
        path = None if folder is None else folder / f"{number:06d}.safetensors"
        units.append(Unit(rows, keys[start : rows.stop], path))
    if folder is not None and world_size() > 1:
        for one in units[rank() :: world_size()]:
            _scores(one, compute, origin)
        distributed.barrier()
    found: list[Scores] = []
    for one in units:
        found += _scores(one, compute, origin)
        if len(found) % (16 * unit) == 0 or len(found) == len(keys):
            logger.info("reference scores  %d/%d rows", len(found), len(keys))
    return found


def _scores(one: Unit, compute: Callable[[range], list[Scores]], origin: str) -> list[Scores]:
    kept = {} if one.path is None else read_scores(one.path, origin)
    if not all(key in kept for key in one.keys):
        scores = compute(one.rows)
        if one.path is None:
            return scores
        write_scores(one.path, dict(zip(one.keys, scores, strict=True)), origin)
        kept = read_scores(one.path, origin)
    return [kept[key] for key in one.keys]


def write_scores(path: Path, scores: dict[str, Scores], origin: str) -> None:
    """Write scores by key, atomically."""
    tensors = {
        "key": torch.tensor([list(bytes.fromhex(key)) for key in scores], dtype=torch.uint8),
        "count": torch.tensor([len(values) for values in scores.values()]),
        "score": torch.tensor([value for values in scores.values() for value in values], dtype=torch.float32),
    }
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"origin": origin})


def read_scores(path: Path, origin: str) -> dict[str, Scores]:
    """Return the scores of a file by key; none if there is no file, it is damaged, or it has another origin."""
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("origin") != origin:
                return {}
            keys, counts, values = (file.get_tensor(name) for name in ("key", "count", "score"))
    except (OSError, SafetensorError, ValueError):
        logger.warning("%s is damaged; its scores are computed again", path)
        return {}
    rows = values.split(counts.tolist())
    return {bytes(key).hex(): row.tolist() for key, row in zip(keys.tolist(), rows, strict=True)}
