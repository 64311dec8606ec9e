"""Recognise the kind of a folder, and inspect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from embrew.files import formats
from embrew.files.locks import is_held
from embrew.files.reading import content_of, read_json
from embrew.inspection import artifacts, training
from embrew.inspection.found import Found


class Kind(NamedTuple):
    """A kind of folder.

    Attributes:
        name: of the kind, for users.
        marker: pattern of the file that a folder of this kind has.
        look: inspects a folder of this kind.
        format: its key in `files.formats.FORMATS`.
    """

    name: str
    marker: str
    look: Callable[[Path], Found]
    format: str


KINDS = (
    Kind("sweep", formats.SWEEP.file, training.sweep, "sweep"),
    Kind("domain run", f"data/{formats.DOMAIN.file}", artifacts.domain, "domain"),
    Kind("training run", formats.RUN.file, training.training_run, "run"),
    Kind("encoder", formats.ENCODER.file, artifacts.encoder, "encoder"),
    Kind("stage in progress", formats.STAGE.file, training.stage_in_progress, "stage"),
    Kind("checkpoint", training.CHECKPOINT, training.checkpoint, "stage"),
    Kind("export", formats.EXPORT.file, artifacts.export, "export"),
    Kind("vectors", f"__embrew__/{formats.VECTORS.file}", artifacts.vectors, "vectors"),
    Kind("data of a domain", formats.DOMAIN.file, artifacts.prepared, "domain"),
    Kind("index", formats.INDEX.file, artifacts.index, "index"),
    Kind("results", formats.RESULT.file.replace("TASK.SPLIT", "*"), artifacts.results, "result"),
    Kind("files of a report", formats.REPORT.file, artifacts.report, "report"),
    Kind("context", formats.CONTEXT.file, artifacts.context, "context"),
)
"""In the order in which they are tried; a stage in progress with checkpoints is of the first kind that matches."""


def inspect(folder: str | Path) -> Found:
    """Return what a folder holds.

    Args:
        folder: any folder; where it holds nothing itself, the folders below it are inspected, down to two levels.

    Raises:
        FileNotFoundError: no such folder.
        NotADirectoryError: it is a file.
    """
    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"no folder {path}; give the folder of a run, a model, vectors, an index or results")
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; give a folder")
    return _or_running(_of_kind(path) or _of_several(path, tuple(_below(path, levels=2))))


def _below(folder: Path, *, levels: int) -> Iterator[Found]:
    """What the folders in a folder hold; one that only contains such folders is one of them."""
    for each in sorted(folder.iterdir()):
        if not each.is_dir() or each.name.startswith("."):
            continue
        try:
            found = _of_kind(each)
            holds = tuple(_below(each, levels=levels - 1)) if found is None and levels > 1 else ()
        except PermissionError as error:
            found, holds = Found(each, "unreadable", str(error.strerror)), ()
        if found is not None:
            yield found
        elif holds:
            yield replace(_of_several(each, holds), kind="folders")


def _or_running(found: Found) -> Found:
    """The same, or `running` where a process holds the folder: it may still write what is missing."""
    return replace(found, state="running", problems=(), commands={}) if is_held(found.path) else found


def _of_kind(folder: Path) -> Found | None:
    """What a folder holds itself; None where no file tells that embrew wrote it."""
    for kind in KINDS:
        marker = next(iter(sorted(folder.glob(kind.marker))), None)
        if marker is None or not _is_meant(kind, marker):
            continue
        try:
            with content_of(marker):
                found = kind.look(folder)
        except formats.OtherFormat as error:
            found = Found(folder, "unreadable", "of another version", problems=(str(error),))
        except (OSError, ValueError) as error:
            found = Found(folder, "damaged", "cannot be read", problems=(str(error),))
        return _or_running(replace(found, kind=kind.name))
    return None


def _is_meant(kind: Kind, marker: Path) -> bool:
    """Whether a marker is of this kind: indexes, data of a domain and that of the demonstration share a file name."""
    if marker.name != formats.DOMAIN.file or kind.format not in ("domain", "index"):
        return True
    try:
        keys = read_json(marker).keys()
    except (OSError, ValueError):
        return kind.marker == formats.INDEX.file  # not below `data`
    return {"made_of", "counts"} <= keys if kind.format == "domain" else "made_of" not in keys


def _of_several(folder: Path, holds: tuple[Found, ...]) -> Found:
    if holds:
        return Found(
            folder, "finished", f"{len(holds)} folder{'s' if len(holds) > 1 else ''} that embrew wrote", holds=holds
        )
    names = [path.name for path in folder.iterdir()]
    if not names:
        return Found(folder, "empty", "nothing in it")
    if all(name.startswith(".") for name in names):
        return Found(folder, "empty", "temporary files only: a command was killed before anything was finished")
    return Found(folder, "unknown", "nothing that embrew wrote")
