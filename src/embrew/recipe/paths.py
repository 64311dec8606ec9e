"""The paths in a recipe's values: of data, of dev and guard sets, and of the language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embrew.files.public_paths import LOCAL_PREFIX

Change = Callable[[str], str]


def with_paths(values: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return a copy of a recipe's values, or of what decides a stage, with every path changed.

    Strings of objectives and of training arguments count as paths if they begin at the root or at a home folder.
    """
    found = dict(values)
    encoder = values.get("encoder")
    if isinstance(encoder, Mapping) and isinstance(encoder.get("model"), str):
        found["encoder"] = {**encoder, "model": change(encoder["model"])}
    return with_data_paths(found, change, settings=True)


def with_data_paths(values: Mapping[str, Any], change: Change, *, settings: bool = False) -> dict[str, Any]:
    """As `with_paths`, for data, dev and guard sets alone; with `settings`, objectives and training arguments too."""
    found = dict(values)
    if isinstance(values.get("stages"), list):
        found["stages"] = [_stage(stage, change, settings) for stage in values["stages"]]
    if isinstance(values.get("evaluation"), Mapping):
        found["evaluation"] = {key: _sets(value, change, key) for key, value in values["evaluation"].items()}
    if "dev_rows" in values:
        found["dev_rows"] = _paths(values["dev_rows"], change)
    return found


def beside(folder: Path, written: dict[str, str]) -> Change:
    """Return a change for relative paths that lead nowhere from here, but do from `folder`: they are taken from there.

    Args:
        folder: of the recipe.
        written: is filled with these paths as they were written, by what they become.
    """

    def change(path: str) -> str:
        if path.startswith(("/", "~", "$", LOCAL_PREFIX)) or Path(path).exists() or not (folder / path).exists():
            return path
        written[str(folder / path)] = path
        return str(folder / path)

    return change


def _stage(stage: Any, change: Change, settings: bool) -> Any:
    if not isinstance(stage, Mapping):
        return stage
    found = {**stage, "data": _paths(stage.get("data"), change)} if "data" in stage else dict(stage)
    for key in ("objective", "training") if settings else ():
        if key in found:
            found[key] = _rooted(found[key], change)
    return found


def _sets(value: Any, change: Change, key: str) -> Any:
    if key in ("dev", "guard") and isinstance(value, list):
        return [change(one) if isinstance(one, str) else _paths(one, change) for one in value]
    return _paths(value, change) if key == "uniformity" else value


def _paths(value: Any, change: Change) -> Any:
    """Change what stands at the key `path`, a string or a list of them; in one mapping or several."""
    match value:
        case list():
            return [_paths(one, change) for one in value]
        case {"path": str(path)}:
            return {**value, "path": change(path)}
        case {"path": list(paths)}:
            return {**value, "path": [change(one) if isinstance(one, str) else one for one in paths]}
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
