"""The values that a stage's outcome depends on, and the differences of two recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from embrew.config.validation_errors import KeyPath


def deciding(values: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the values of a recipe that the outcome of stage `index` depends on."""
    stages = (values.get("stages") or [])[: index + 1]
    found = {"encoder": values.get("encoder"), "stages": stages, "seed": values.get("seed")}
    evaluation = values.get("evaluation") or {}
    names = [stage["name"] for stage in stages]
    watched = [name for name in names if name in (evaluation.get("stages") or names)]
    if evaluation.get("every") is not None and watched:
        chosen = {key: evaluation[key] for key in ("dev", "metric", "every", "patience")}
        found["evaluation"] = {**chosen, "stages": watched}
    reserved = [one for one in evaluation.get("dev") or [] if isinstance(one, Mapping)]
    if reserved:  # rows that are not trained on
        found["dev_rows"] = reserved
    return found


def canonical(value: Any) -> Any:
    """Return values in canonical form: 1.0 becomes 1, and keys without a value are left out."""
    match value:
        case dict():
            return {key: canonical(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [canonical(item) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value


def differences(ours: Any, theirs: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the key paths at which two trees of plain data differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs: list[Any] = list(dict.fromkeys([*ours, *theirs]))
        absent = object()
        for key in pairs:
            yield from differences(ours.get(key, absent), theirs.get(key, absent), (*path, key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, (*path, i))
    elif ours != theirs or type(ours) is not type(theirs):
        yield path
