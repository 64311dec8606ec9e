"""The paths in a recipe: data, dev and guard sets, language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embrew.files.names import LOCAL_PREFIX

Change = Callable[[str], str]


def with_paths(values: Mapping[str, Any], change: Change, *, data_only: bool = False) -> dict[str, Any]:
    """Return a copy of a recipe's values, or of `deciding`'s, with `change` applied to every path.

    Strings in objectives and training arguments count as paths if they begin with `/` or `~/`. With `data_only`, only
    the paths of data, dev and guard sets are changed.
    """
    changed = dict(values)
    settings = {} if data_only else {"objective": _rooted, "training": _rooted}
    of_stage: dict[str, Callable[[Any, Change], Any]] = {"data": _paths, **settings}
    encoder = values.get("encoder")
    if not data_only and isinstance(encoder, Mapping):
        named = {key: change(encoder[key]) for key in ("model", "adapter") if isinstance(encoder.get(key), str)}
        changed["encoder"] = {**encoder, **named}
    if isinstance(values.get("stages"), list):
        changed["stages"] = [
            {key: of_stage[key](value, change) if key in of_stage else value for key, value in stage.items()}
            if isinstance(stage, Mapping)
            else stage
            for stage in values["stages"]
        ]
    if isinstance(values.get("evaluation"), Mapping):
        changed["evaluation"] = {
            key: _paths(value, change) if key in ("dev", "guard", "uniformity") else value
            for key, value in values["evaluation"].items()
        }
    if "dev_rows" in values:
        changed["dev_rows"] = _paths(values["dev_rows"], change)
    return changed


def beside(folder: Path, written: dict[str, str]) -> Change:
    """Return a change that resolves relative paths against `folder` if they exist only there.

    Args:
        folder: the recipe's folder.
        written: receives the original paths, by the resolved ones.
    """

    def change(path: str) -> str:
        if path.startswith(("/", "~", "$", LOCAL_PREFIX)) or Path(path).exists() or not (folder / path).exists():
            return path
        written[str(folder / path)] = path
        return str(folder / path)

    return change


def _paths(value: Any, change: Change) -> Any:
    """Change strings in a list, and the value of the key `path` of a mapping."""
    match value:
        case str():
            return change(value)
        case list():
            return [_paths(one, change) for one in value]
        case {"path": path}:
            return {**value, "path": _paths(path, change)}
    return value


def _rooted(value: Any, change: Change) -> Any:
    match value:
        case Mapping():
            return {key: _rooted(item, change) for key, item in value.items()}
        case list():
            return [_rooted(item, change) for item in value]
        case str() if value.startswith(("/", "~/")) and " " not in value:
            return change(value)
    return value
