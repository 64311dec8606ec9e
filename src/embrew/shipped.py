"""YAML files that come with the package, by name: recipes and suites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from embrew.overrides import nearest
from embrew.stored import content_of


def list_shipped(folder: str) -> list[str]:
    """Names of the files in a folder of the package, without their suffix."""
    return sorted(name for name, _ in _files(resources.files("embrew") / folder))


def read_shipped(
    folder: str, name_or_path: str | Path, *, what: str, among: Sequence[str] | None = None
) -> tuple[str, str]:
    """The YAML text of a shipped file or of a user's, and the words that say where it is from.

    Args:
        folder: `recipes` or `suites`.
        what: What such a file is called, for messages.
        among: The names that are meant, where not every file is such a one.

    Raises:
        FileNotFoundError: no such name or file; names the nearest.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        with content_of(path, repair=f"give a {what}'s YAML file"):
            return path.read_text(encoding="utf-8"), str(path)
    files = _files(resources.files("embrew") / folder)
    shipped = {name: file for name, file in files if among is None or name in among}
    name = str(name_or_path)
    if name in shipped:
        return shipped[name].read_text(encoding="utf-8"), f"{what} {name}"
    names = ", ".join(sorted(shipped))
    if path.is_dir():
        raise ValueError(f"{name!r} is a folder; give a {what}'s YAML file or one of {names}")
    raise FileNotFoundError(f"no {what} {name!r}; give a YAML file or one of {names}{nearest(name, list(shipped))}")


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name.removesuffix(".yaml"), entry
