"""Checks of values that users write; messages have the key, the value, the allowed values and the nearest one."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatch
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, InstanceOf, ValidationError, create_model
from pydantic_core import PydanticCustomError

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)
REFUSED = "refused"  # the type of an error of a key
MAX_LISTED = 30  # names that a message lists; for more, it gives their number and the nearest


def choose_from(word: str, allowed: Collection[str]) -> str:
    """Return `choose from …` with the nearest name; for many names, their number and the nearest three."""
    if len(allowed) > MAX_LISTED:
        return f"it is none of the {len(allowed)} names that are allowed{did_you_mean(word, allowed, limit=3)}"
    return f"choose from {', '.join(allowed)}{did_you_mean(word, allowed)}"


def did_you_mean(word: str, choices: Collection[str], *, limit: int = 1) -> str:
    """Return `"; did you mean 'x'?"` with up to `limit` similar choices, or an empty string.

    >>> did_you_mean("llm2comp/nanno", ["epic/nano", "llm2comp/nano", "lbr/ratio"], limit=3)
    "; did you mean 'llm2comp/nano' or 'epic/nano'?"
    """
    close = [repr(choice) for choice in difflib.get_close_matches(word, list(choices), n=limit, cutoff=0.5)]
    return f"; did you mean {join_with_or(close)}?" if close else ""


def join_with_or(words: Sequence[str]) -> str:
    """Return words joined as `a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, with `…` for the rest.

    >>> shortened("a long title", 6)
    'a lon…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(text: str, limit: int = 300) -> str:
    """Return the text in quotes, truncated to `limit` characters.

    >>> quoted("encoder.model=nano", 12)
    "'encoder.m...'"
    """
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def explain(
    error: ValidationError,
    root: type,
    values: Any,
    *,
    prefix: KeyPath = (),
    location: Callable[[KeyPath], str] | None = None,
) -> str:
    """Return the message of a validation error, one line per problem.

    Args:
        error: what pydantic raised.
        root: the pydantic model or dataclass that was validated.
        values: the validated values.
        prefix: keys of `root` in the recipe, for example `("stages", 0, "objective")`.
        location: returns the prefix of a problem's line from its path, such as file and line number.
    """
    lines: dict[KeyPath, str] = {}
    vague: dict[KeyPath, bool] = {}  # whether the line only names the expected type
    for problem in error.errors(include_url=False):
        path = _path(problem["loc"], values, missing=problem["type"] in ("missing", "missing_argument"))
        message = _message(problem, (*prefix, *path), _owner(root, path[:-1]), _owner(root, path))
        is_vague = problem["type"].endswith("_type")
        if path not in lines or (vague[path] and not is_vague):
            lines[path], vague[path] = message, is_vague
        elif vague[path] == is_vague:  # the other members of a union
            lines[path] += f" or {message.rpartition('; allowed: ')[2]}"
    parents = {path[:end] for path in lines for end in range(len(path))}  # for a union, show the best match
    messages = {path: line for path, line in lines.items() if path not in parents or not path}
    return "\n".join((location((*prefix, *path)) if location else "") + message for path, message in messages.items())


def dotted(path: Sequence[str | int]) -> str:
    """Return `("stages", 0, "name")` as `stages.0.name`."""
    return ".".join(str(key) for key in path)


def field_names(owner: type | None) -> list[str]:
    """Return the keys of a pydantic model or a dataclass."""
    if owner is None:
        return []
    if issubclass(owner, BaseModel):
        return list(owner.model_fields)
    return [field.name for field in dataclasses.fields(owner) if field.init] if dataclasses.is_dataclass(owner) else []


def _message(problem: Any, path: KeyPath, owner: type | None, target: type | None) -> str:
    key, kind, value = dotted(path), problem["type"], problem["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {key}; {_valid_keys(str(path[-1]), owner)}"
    if kind == REFUSED:
        return f"{key} {problem['msg']}"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing; it is required"
    if kind == "value_error":  # embrew's own check: its message is complete
        return f"{key}: {problem['ctx']['error']}" if key else str(problem["ctx"]["error"])
    if kind == "literal_error":
        allowed = problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"{key}={_short(value)}; {choose_from(str(value), allowed)}"
    if kind in ("too_short", "string_too_short"):
        minimum, unit = problem["ctx"]["min_length"], "item" if kind == "too_short" else "character"
        return f"{key}={_short(value)}; allowed: at least {minimum} {unit}{'' if minimum == 1 else 's'}"
    if kind in ("model_type", "dataclass_type"):
        return f"{key or 'recipe'}={_short(value)}; allowed: a mapping with keys {', '.join(field_names(target))}"
    allowed = problem["msg"].removeprefix("Input should be ").replace("valid dictionary", "mapping")
    return f"{key}={_short(value)}; allowed: {allowed}"


def _valid_keys(word: str, owner: type | None) -> str:
    valid = field_names(owner)
    if owner is not None and len(valid) > MAX_LISTED:
        return (
            f"it is none of the {len(valid)} keys of {owner.__name__} that are allowed here{did_you_mean(word, valid)}"
        )
    return f"valid keys: {', '.join(valid)}{did_you_mean(word, valid)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
    return next((inner for part in typing.get_args(annotation) if (inner := _class_in(part))), None)


class Config(BaseModel):
    """Base of recipe classes: frozen, strict types, no unknown keys, no NaN and no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Fields(Config):
    """Base of the models of dataclasses."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


def fields_model(
    kind: type, types: Mapping[str, Any] | None = None, refused: Mapping[str, str] | None = None
) -> type[Fields]:
    """Return a pydantic model with the fields of a dataclass; those without a default are required.

    Args:
        kind: the dataclass.
        types: types that replace those of the dataclass, by field.
        refused: patterns of fields that are left out.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    annotated: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.init and not refusal(field.name, refused or {}):
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            hint = (types or {}).get(field.name) or _checkable(hints[field.name])
            annotated[field.name] = (hint, ... if required else None)
    return create_model(kind.__name__, __base__=Fields, **annotated)


def check_fields(
    model: type[Model], values: Mapping[str, Any], *, path: KeyPath = (), message_prefix: str = ""
) -> Model:
    """Return checked values, each of its type and within its range.

    Args:
        model: types and ranges, for example from `fields_model`.
        values: values by name; those that are left out are at their defaults.
        path: their path in a recipe, for messages.
        message_prefix: text before each message.

    Raises:
        ValueError: values that do not fit; names all of them.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ValueError(explain(error, model, values, prefix=path, location=lambda _: message_prefix)) from None


def refusal(name: str, refused: Mapping[str, str]) -> str | None:
    """Return the reason of the first pattern that matches a key; None: it is not refused."""
    return next((words for pattern, words in refused.items() if fnmatch(name, pattern)), None)


def refusing(refused: Mapping[str, str]) -> AfterValidator:
    """Return a check of a key: no pattern of `refused` matches it."""

    def check(name: str) -> str:
        reason = refusal(name, refused)
        if reason is not None:
            raise PydanticCustomError(REFUSED, "{reason}", {"reason": reason})
        return name

    return AfterValidator(check)


def _checkable(hint: Any) -> Any:
    """Return a type hint that accepts an enum by its values, and instances of dataclasses as they are."""
    enum = next((arg for arg in typing.get_args(hint) if isinstance(arg, type) and issubclass(arg, Enum)), None)
    if enum is not None:
        return Literal[tuple(member.value for member in enum)]
    return Annotated[hint, InstanceOf()] if isinstance(hint, type) and dataclasses.is_dataclass(hint) else hint
