"""Types and ranges of the settings of objectives, and their validation."""

from __future__ import annotations

import dataclasses
import typing
from functools import cache
from typing import Annotated, Any

from pydantic import Field, InstanceOf, TypeAdapter, ValidationError

from embrew.config.allowed_keys import AllowedKeys
from embrew.config.validation_errors import KeyPath, explain

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
CosineMargin = Annotated[float, Field(ge=-2, le=2)]  # a difference of two cosines
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]  # 0: none


@cache
def settings_of(kind: type) -> tuple[AllowedKeys, TypeAdapter[dict[str, Any]]]:
    """Return the settings of an objective's class (its fields), and a validator of their annotated types."""
    hints = typing.get_type_hints(kind, include_extras=True)
    types = {field.name: _instance_or(hints[field.name]) for field in dataclasses.fields(kind) if field.init}
    keys = AllowedKeys(types)
    return keys, TypeAdapter(Annotated[dict[str, Any], keys])


def _instance_or(hint: Any) -> Any:
    """Return a type hint that accepts instances of a nested objective without validating them again."""
    nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
    return Annotated[hint, InstanceOf()] if nested else hint


def check_values(kind: type, settings: dict[str, Any], *, path: KeyPath = (), words: str = "") -> dict[str, Any]:
    """The settings of an objective, each of its type and within its range.

    Args:
        kind: its class.
        settings: by name; those that are left out are at their defaults.
        path: their path in a recipe, for messages.
        words: what comes before each message.

    Raises:
        ValueError: a value that does not fit; names all of them.
    """
    keys, adapter = settings_of(kind)
    try:
        return adapter.validate_python(settings)
    except ValidationError as error:
        raise ValueError(explain(error, keys, settings, prefix=path, place=lambda _: words)) from None
