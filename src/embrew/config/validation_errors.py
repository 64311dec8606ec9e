"""Messages for failed validations: the key, the given value, the allowed values."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from embrew.config.suggestions import MOST, choose_from, did_you_mean

KeyPath = tuple[str | int, ...]
REFUSED = "refused"  # the type of an error of a key


def explain(
    error: ValidationError,
    root: type,
    values: Any,
    *,
    prefix: KeyPath = (),
    place: Callable[[KeyPath], str] | None = None,
) -> str:
    """Return the message of a validation error, one line per problem.

    Args:
        error: what pydantic raised.
        root: the pydantic model or dataclass that was validated.
        values: the validated values.
        prefix: keys of `root` in the recipe, for example `("stages", 0, "objective")`.
        place: returns the prefix of a problem's line from its path, such as file and line number.
    """
    lines: dict[KeyPath, str] = {}
    vague: dict[KeyPath, bool] = {}  # whether the line only names the expected type
    for problem in error.errors(include_url=False):
        path = _path(problem["loc"], values, missing=problem["type"] in ("missing", "missing_argument"))
        words = _words(problem, (*prefix, *path), _owner(root, path[:-1]), _owner(root, path))
        is_vague = problem["type"].endswith("_type")
        if path not in lines or (vague[path] and not is_vague):
            lines[path], vague[path] = words, is_vague
        elif vague[path] == is_vague:  # the other members of a union
            lines[path] += f" or {words.rpartition('; allowed: ')[2]}"
    inner = {path[:end] for path in lines for end in range(len(path))}  # for a union, show the best match
    shown = {path: words for path, words in lines.items() if path not in inner or not path}
    return "\n".join((place((*prefix, *path)) if place else "") + words for path, words in shown.items())


def dotted(path: Sequence[str | int]) -> str:
    """Return `("stages", 0, "name")` as `stages.0.name`."""
    return ".".join(str(key) for key in path)


def keys_of(owner: type | None) -> list[str]:
    """Return the keys of a pydantic model or a dataclass."""
    if owner is None:
        return []
    if issubclass(owner, BaseModel):
        return list(owner.model_fields)
    return [field.name for field in dataclasses.fields(owner) if field.init] if dataclasses.is_dataclass(owner) else []


def _words(problem: Any, path: KeyPath, owner: type | None, target: type | None) -> str:
    key, kind, given = dotted(path), problem["type"], problem["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {key}; {_valid(str(path[-1]), owner)}"
    if kind == REFUSED:
        return f"{key} {problem['msg']}"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing; it is required"
    if kind == "value_error":  # embrew's own check: its message is complete
        return f"{key}: {problem['ctx']['error']}" if key else str(problem["ctx"]["error"])
    if kind == "literal_error":
        allowed = problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"{key}={_short(given)}; {choose_from(str(given), allowed)}"
    if kind in ("too_short", "string_too_short"):
        least, unit = problem["ctx"]["min_length"], "item" if kind == "too_short" else "character"
        return f"{key}={_short(given)}; allowed: at least {least} {unit}{'' if least == 1 else 's'}"
    if kind in ("model_type", "dataclass_type"):
        return f"{key or 'recipe'}={_short(given)}; allowed: a mapping with keys {', '.join(keys_of(target))}"
    allowed = problem["msg"].removeprefix("Input should be ").replace("valid dictionary", "mapping")
    return f"{key}={_short(given)}; allowed: {allowed}"


def _valid(word: str, owner: type | None) -> str:
    valid = keys_of(owner)
    if owner is not None and len(valid) > MOST:
        return (
            f"it is none of the {len(valid)} keys of {owner.__name__} that are allowed here{did_you_mean(word, valid)}"
        )
    return f"valid keys: {', '.join(valid)}{did_you_mean(word, valid)}"


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 80 else said[:77] + "..."


def _path(loc: Sequence[str | int], values: Any, *, missing: bool) -> KeyPath:
    """Return `loc` without pydantic's names of union members, which are not keys."""
    path: list[str | int] = []
    for i, key in enumerate(loc):
        inside = values if isinstance(values, dict) else dict(enumerate(values)) if isinstance(values, list) else {}
        if key in inside or (missing and i == len(loc) - 1):
            values = inside.get(key)
            path.append(key)
    return tuple(path)


def _owner(root: type, path: KeyPath) -> type | None:
    """Return the class at `path` under `root`; None if it is not one of embrew's."""
    current: type | None = root
    for key in path:
        if isinstance(key, int):
            continue
        annotations = {} if current is None else typing.get_type_hints(current, include_extras=True)
        current = _class_in(annotations[key]) if key in annotations else None
    return current


def _class_in(annotation: Any) -> type | None:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _class_in(part))), None)
