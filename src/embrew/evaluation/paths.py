"""Where the model and the data of results are on this machine, in one file beside them, for `embrew compare`."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from embrew.evaluation.find import cells
from embrew.evaluation.mteb_tasks import MtebTask
from embrew.evaluation.task import Task
from embrew.files.formats import PATHS
from embrew.files.reading import BrokenFile, content_of, read_json
from embrew.files.writing import write_json

REPAIR = "remove it; results do not need it"


class Paths(NamedTuple):
    """Absolute paths; whether they still lead to what was evaluated is for the reader to verify.

    Attributes:
        model: Folder of the model; None if it was opened by a name.
        data: Folder or file of each task, by `TASK.SPLIT`, the name of its result.
        pooling: What a language model without embedding settings was read with; None: it has its own.
    """

    model: Path | None = None
    data: Mapping[str, Path] = {}
    pooling: str | None = None


def write_paths(folder: Path, model: str, tasks: Iterable[Task | MtebTask], *, pooling: str | None = None) -> None:
    """Write `paths.json` into a folder of results; what it says of other tasks is kept, a damaged one replaced."""
    data: dict[str, Path] = {}
    with suppress(BrokenFile):
        data |= read_paths(folder).data
    for cell in (cell for task in tasks if isinstance(task, Task) for cell in cells(task)):
        data[f"{cell.name}.{cell.split_label}"] = cell.path.absolute()
    opened = str(Path(model).absolute()) if Path(model).is_dir() else None
    paths = {name: str(path) for name, path in data.items()}
    write_json(folder / PATHS.file, {"format": PATHS.number, "model": opened, "pooling": pooling, "data": paths})


def read_paths(folder: Path) -> Paths:
    """Return what `paths.json` says in a folder of results; nothing if it is not there."""
    file = folder / PATHS.file
    if not file.is_file():
        return Paths()
    values = read_json(file, keys=("model", "data", "pooling"), repair=REPAIR, kind=PATHS)
    with content_of(file, repair=REPAIR):
        data = {name: _absolute(path) for name, path in values["data"].items()}
        return Paths(None if values["model"] is None else _absolute(values["model"]), data, values["pooling"])


def _absolute(path: Any) -> Path:
    """Return a path, never a name of the Hub or one below the working directory."""
    if not Path(path).is_absolute():
        raise ValueError(f"{path!r} is not an absolute path")
    return Path(path)
