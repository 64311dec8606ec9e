"""Models that are compared: a name, and the results of each seed with their sidecars."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from embrew.evaluation.report import Result, read_result, result_files
from embrew.files.reading import read_json

CHOICE = Path("untrained", "choice.json")
"""In a result folder: the pooling that was chosen for a bare language model, beside its dev scores."""


@dataclass(frozen=True)
class Model:
    """A model in a table or report.

    Attributes:
        name: Name in tables.
        seeds: Results of each seed.
    """

    name: str
    seeds: Sequence[Sequence[Result]]


def read_folder(folder: str | Path) -> tuple[Result, ...]:
    """Read the results of a folder with their sidecars, sorted by file name.

    Raises:
        FileNotFoundError: no such folder, or it holds no results.
    """
    files = result_files(Path(folder))
    if not files:
        raise FileNotFoundError(f"{folder} holds no results; embrew evaluate --output {quote(str(folder))} writes them")
    return tuple(map(read_result, files))


def pooling_of_results(folder: str | Path) -> str | None:
    """Return the pooling that was chosen for the language model whose results a folder holds; None if none was."""
    file = Path(folder) / CHOICE
    return str(read_json(file, keys=("pooling",), sealed=True)["pooling"]) if file.is_file() else None


def with_pooling(name: str, *poolings: str | None) -> str:
    """Return the name of a model, with the poolings that were chosen for its seeds."""
    chosen = ", ".join(sorted({pooling for pooling in poolings if pooling}))
    return f"{name} ({chosen})" if chosen else name


def folders_by_name(entries: Sequence[str]) -> dict[str, list[str]]:
    """Return paths by name: `NAME=PATH` sets the name, paths of the same name are seeds of one model.

    What exists is a path, also with `=` in it. A path without a name has that of its folder, or `RUN/STAGE` where
    several folders have the same.
    """
    plain = {entry for entry in entries if "=" not in entry or os.path.lexists(entry)}
    split = [("", entry) if entry in plain else entry.partition("=")[::2] for entry in entries]
    unnamed = {path for name, path in split if not name}
    folders: dict[str, list[str]] = {}
    for name, path in split:
        folder_name = Path(path).name
        if not name and sum(Path(other).name == folder_name for other in unnamed) > 1:
            folder_name = "/".join(Path(path).parts[-2:])
        folders.setdefault(name or folder_name, []).append(path)
    return folders


def models_of(entries: Sequence[str]) -> list[Model]:
    """Return models from result folders, named as `folders_by_name` says.

    Raises:
        FileNotFoundError: a folder without results.
        ValueError: the folders of one name hold different tasks.
    """
    models = [
        Model(with_pooling(name, *map(pooling_of_results, folders)), tuple(map(read_folder, folders)))
        for name, folders in folders_by_name(entries).items()
    ]
    for model in models:
        check_same_tasks(model)
    return models


def check_same_tasks(model: Model) -> None:
    """Raise if the seeds of a model have results of different tasks."""
    if len({tuple((result.task, result.split) for result in run) for run in model.seeds}) > 1:
        raise ValueError(
            f"the folders of {model.name!r} hold different tasks; give them different names, or the same tasks"
        )
