"""A failed validation in words: which key, what was given, what is allowed."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from embrew.overrides import nearest

KeyPath = tuple[str | int, ...]


def explain(
    error: ValidationError,
    root: type,
    values: Any,
    *,
    prefix: KeyPath = (),
    place: Callable[[KeyPath], str] | None = None,
) -> str:
    """One line a problem.

    Args:
        error: what pydantic raised.
        root: the pydantic model or dataclass that was to be made.
        values: what it was to be made from.
        prefix: where `root` itself stands, for example `("stages", 0, "objective")`.
        place: gives the words before a problem (file and line, say) from its path.
    """
    lines: dict[KeyPath, str] = {}
    for problem in error.errors(include_url=False):
        path = _path(problem["loc"], values, missing=problem["type"] in ("missing", "missing_argument"))
        words = _words(problem, (*prefix, *path), _owner(root, path[:-1]), _owner(root, path))
        if path in lines:  # the other members of a union
            lines[path] += f" or {words.rpartition('; allowed: ')[2]}"
        else:
            lines[path] = words
    return "\n".join((place((*prefix, *path)) if place else "") + words for path, words in lines.items())


def dotted(path: Sequence[str | int]) -> str:
    """`("stages", 0, "name")` as `stages.0.name`."""
    return ".".join(str(key) for key in path)


def keys_of(owner: type | None) -> list[str]:
    """The keys a pydantic model or a dataclass takes."""
    if owner is None:
        return []
    if issubclass(owner, BaseModel):
        return list(owner.model_fields)
    return [field.name for field in dataclasses.fields(owner) if field.init] if dataclasses.is_dataclass(owner) else []


def _words(problem: Any, path: KeyPath, owner: type | None, target: type | None) -> str:
    key, kind, given = dotted(path), problem["type"], problem["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        valid = keys_of(owner)
        return f"unknown key {key}; valid keys: {', '.join(valid)}{nearest(str(path[-1]), valid)}"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing; it is required"
    if kind == "value_error":  # a check of our own: its words are complete
        return f"{key}: {problem['ctx']['error']}" if key else str(problem["ctx"]["error"])
    if kind == "literal_error":
        allowed = problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"{key}={given!r}; choose from {', '.join(allowed)}{nearest(str(given), allowed)}"
    if kind in ("model_type", "dataclass_type"):
        return f"{key or 'recipe'}={_short(given)}; allowed: a mapping with keys {', '.join(keys_of(target))}"
    allowed = problem["msg"].removeprefix("Input should be ").replace("valid dictionary", "mapping")
    return f"{key}={_short(given)}; allowed: {allowed}"


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 80 else said[:77] + "..."


def _path(loc: Sequence[str | int], values: Any, *, missing: bool) -> KeyPath:
    """`loc` without pydantic's names for the members of a union, which are no keys."""
    path: list[str | int] = []
    for i, key in enumerate(loc):
        inside = values if isinstance(values, dict) else dict(enumerate(values)) if isinstance(values, list) else {}
        if key in inside or (missing and i == len(loc) - 1):
            values = inside.get(key)
            path.append(key)
    return tuple(path)


def _owner(root: type, path: KeyPath) -> type | None:
    """The class that stands at `path` under `root`, or None where there is no class of ours."""
    current: type | None = root
    for key in path:
        if isinstance(key, int):
            continue
        annotations = {} if current is None else typing.get_type_hints(current)
        current = _class_in(annotations[key]) if key in annotations else None
    return current


def _class_in(annotation: Any) -> type | None:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _class_in(part))), None)
