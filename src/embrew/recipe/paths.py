"""The paths in a recipe: data, dev and guard sets, language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embrew.files.names import LOCAL_PREFIX

Change = Callable[[str], str]


def with_paths(values: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return a copy of a recipe's values, or of `deciding`'s, with `change` applied to every path.

    Strings in objectives and training arguments count as paths if they begin with `/` or `~/`.
    """
    changed = dict(values)
    encoder = values.get("encoder")
    if isinstance(encoder, Mapping) and isinstance(encoder.get("model"), str):
        changed["encoder"] = {**encoder, "model": change(encoder["model"])}
    return with_data_paths(changed, change, settings=True)


def with_data_paths(values: Mapping[str, Any], change: Change, *, settings: bool = False) -> dict[str, Any]:
    """Like `with_paths`, for data, dev and guard sets only; with `settings`, also objectives and training arguments."""
    changed = dict(values)
    if isinstance(values.get("stages"), list):
        changed["stages"] = [_stage(stage, change, settings) for stage in values["stages"]]
    if isinstance(values.get("evaluation"), Mapping):
        changed["evaluation"] = {key: _sets(value, change, key) for key, value in values["evaluation"].items()}
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


def _stage(stage: Any, change: Change, settings: bool) -> Any:
    if not isinstance(stage, Mapping):
        return stage
    changed = {**stage, "data": _paths(stage.get("data"), change)} if "data" in stage else dict(stage)
    for key in ("objective", "training") if settings else ():
        if key in changed:
            changed[key] = _rooted(changed[key], change)
    return changed


def _sets(value: Any, change: Change, key: str) -> Any:
    if key in ("dev", "guard") and isinstance(value, list):
        return [change(one) if isinstance(one, str) else _paths(one, change) for one in value]
    return _paths(value, change) if key == "uniformity" else value


def _paths(value: Any, change: Change) -> Any:
    """Change the value of the key `path`, a string or a list, in one mapping or several."""
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
