"""Names that the shell completes. Every completion starts a process, so no heavy library is imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from embrew.files.formats import CONTEXT, RUN


def recipes(incomplete: str) -> list[str]:
    """Return the shipped recipes; if none matches, the shell completes file names."""
    return [name for name in _shipped("recipes", incomplete) if not name.startswith("launch/")]


def recipes_and_launches(incomplete: str) -> list[str]:
    """Return the shipped recipes and configurations of the launcher."""
    return _shipped("recipes", incomplete)


def suites(incomplete: str) -> list[str]:
    """Return the shipped suites."""
    return _shipped("suites", incomplete)


def fetchable(incomplete: str) -> list[str]:
    """Return the data sets that can be fetched, and the shipped suites."""
    return [*_shipped("sets", incomplete), *suites(incomplete)]


def sweeps(incomplete: str) -> list[str]:
    """Return the shipped sweeps."""
    return _shipped("sweeps", incomplete)


def contexts(context: typer.Context, incomplete: str) -> list[str]:
    """Return the contexts of the model that is already on the command line."""
    words = [context.params.get("model"), *(context.params.get("models") or ()), *context.args]
    folders = [Path(str(word)) for word in words if word]  # in args, while the option that is completed has no value
    folder = next((path for path in folders if path.is_dir()), Path())
    return sorted(name for name in _contexts(folder) if name.startswith(incomplete))


def _contexts(folder: Path) -> Iterator[str]:
    """Return the names of the contexts of an encoder, or of the encoder of a run's last stage."""
    if (folder / RUN.file).is_file():
        from embrew.inspection import inspect

        finished = [stage.name for stage in inspect(folder).stages if stage.state == "finished"]
        folder = folder / finished[-1] if finished else folder
    return (path.parent.name for path in folder.glob(f"contexts/*/{CONTEXT.file}"))


def _shipped(folder: str, incomplete: str) -> list[str]:
    """Return the names of files that come with the package."""
    from embrew.settings.yaml_files import list_shipped

    return [name for name in list_shipped(folder) if name.startswith(incomplete)]
