"""Shipped YAML files by name (recipes, suites, sweeps), or a user's own by path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from embrew.config.suggestions import nearest_names, one_of, quoted
from embrew.config.yaml_text import MAX_CHARACTERS
from embrew.files.reading import content_of

LISTED = 15  # names that a message lists; for more, it names the command that lists them


def list_shipped(folder: str) -> list[str]:
    """Return the names of the files in a folder of the package, without suffix."""
    return sorted(name for name, _ in _files(resources.files("embrew") / folder))


def read_shipped(
    folder: str, name_or_path: str | Path, *, what: str, among: Sequence[str] | None = None
) -> tuple[str, str]:
    """Return the YAML text of a shipped or a user's file, and its source for messages.

    Args:
        folder: `recipes`, `suites` or `sweeps`.
        name_or_path: a file's path, or a shipped file's name.
        what: what such a file is called, for messages.
        among: the names to choose from, if not all files of the folder.

    Raises:
        FileNotFoundError: no such file or name; the message has the nearest ones.
        ValueError: a folder, a device, or a file that is empty, too large or not UTF-8.
    """
    name = str(name_or_path)
    try:
        path = Path(name_or_path).expanduser()
    except RuntimeError:  # `~nobody/recipe.yaml`
        raise FileNotFoundError(f"no file {quoted(name)}: there is no such user") from None
    if not name:
        raise FileNotFoundError(f"no {what} is named ''; give a {what}'s name or a YAML file")
    if path.is_file():
        return read_text(path, what=what), str(path)
    files = dict(_files(resources.files("embrew") / folder))
    shipped = {key: file for key, file in files.items() if among is None or key in among}
    if name in shipped:
        return shipped[name].read_text(encoding="utf-8"), f"{what} {name}"
    if path.is_dir():
        raise ValueError(f"{quoted(name)} is a folder; give a {what}'s YAML file, or the name of a {what}")
    if path.exists():
        raise ValueError(f"{quoted(name)} is a pipe or a device, not a file; give a {what}'s YAML file")
    if _looks_like_path(name, shipped):
        raise FileNotFoundError(f"no file {quoted(name)}{_near_path(path, shipped, what)}")
    close = [repr(one) for one in nearest_names(name, list(files))]
    hint = f"did you mean {one_of(close)}? " if close else ""
    raise FileNotFoundError(f"no {what} named {quoted(name)}; {hint}{_all(shipped)}")


def read_text(path: Path, *, what: str) -> str:
    """Return the text of a user's YAML file.

    Raises:
        ValueError: the file is empty, too large, or not UTF-8 (`BrokenFile`).
    """
    size = path.stat().st_size
    if size > 4 * MAX_CHARACTERS:
        raise ValueError(f"{path}: {size:,} bytes; a {what} has at most {4 * MAX_CHARACTERS:,}")
    with content_of(path, repair=f"give a {what}'s YAML file"):
        text = path.read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{path} is empty; give a {what}'s YAML file")
    return text


def _looks_like_path(name: str, shipped: dict[str, Traversable]) -> bool:
    if name.endswith((".yaml", ".yml", ".json")) or name.startswith((".", "/", "~", os.sep)) or "\\" in name:
        return True
    first = name.split("/")[0]
    return "/" in name and Path(first).is_dir() and not any(key.startswith(f"{first}/") for key in shipped)


def _near_path(path: Path, shipped: dict[str, Traversable], what: str) -> str:
    """Return `; did you mean …?` with similar files of the same folder, or a shipped name; or an empty string."""
    folder = path.parent
    beside = [one.name for one in folder.iterdir() if one.suffix in (".yaml", ".yml")] if folder.is_dir() else []
    close = [repr(str(folder / one)) for one in difflib.get_close_matches(path.name, beside, n=2)]
    stem = str(path).removesuffix(".yaml").removesuffix(".yml")
    if stem in shipped:
        close.append(f"the shipped {what} {stem!r}")
    return f"; did you mean {one_of(close)}?" if close else ""


def _all(shipped: dict[str, Traversable]) -> str:
    if len(shipped) > LISTED:
        return f"embrew recipe list shows all {len(shipped)}"
    return f"give a YAML file, or choose from {', '.join(sorted(shipped))}"


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name.removesuffix(".yaml"), entry
