"""Check mappings whose keys are the fields of a dataclass: an objective, `TrainingArguments`, `LoraConfig`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from enum import Enum
from fnmatch import fnmatch
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, InstanceOf, ValidationError, create_model
from pydantic_core import PydanticCustomError

from embrew.config.validation_errors import REFUSED, KeyPath, explain


class Fields(BaseModel):
    """Base of the models of dataclasses: strict types, no unknown keys, no NaN and no infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def fields_model(
    kind: type, types: Mapping[str, Any] | None = None, refused: Mapping[str, str] | None = None
) -> type[Fields]:
    """Return a pydantic model with the fields of a dataclass, none of them required.

    Args:
        kind: the dataclass.
        types: types instead of its own, by field.
        refused: patterns of fields that are left out.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind) if field.init and not reason(field.name, refused or {})]
    annotated: dict[str, Any] = {name: _checkable(hints[name]) for name in names} | dict(types or {})
    optional: dict[str, Any] = {name: (hint, None) for name, hint in annotated.items()}
    return create_model(kind.__name__, __base__=Fields, **optional)


def check_fields(model: type[Fields], values: Mapping[str, Any], *, path: KeyPath = (), words: str = "") -> Fields:
    """Return checked values, each of its type and within its range.

    Args:
        model: from `fields_model`.
        values: by name; those that are left out are at their defaults.
        path: their path in a recipe, for messages.
        words: what comes before each message.

    Raises:
        ValueError: values that do not fit; names all of them.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ValueError(explain(error, model, values, prefix=path, place=lambda _: words)) from None


def reason(name: str, refused: Mapping[str, str]) -> str | None:
    """Return the reason of the first pattern that matches a key; None: it is not refused."""
    return next((words for pattern, words in refused.items() if fnmatch(name, pattern)), None)


def keys_without(refused: Mapping[str, str]) -> Any:
    """Return the type of keys that no pattern of `refused` matches."""

    def check(name: str) -> str:
        words = reason(name, refused)
        if words is not None:
            raise PydanticCustomError(REFUSED, "{reason}", {"reason": words})
        return name

    return Annotated[str, AfterValidator(check)]


def _checkable(hint: Any) -> Any:
    """Return a type hint that accepts an enum by its values, and instances of dataclasses as they are."""
    enum = next((one for one in typing.get_args(hint) if isinstance(one, type) and issubclass(one, Enum)), None)
    if enum is not None:
        return Literal[tuple(one.value for one in enum)]
    return Annotated[hint, InstanceOf()] if isinstance(hint, type) and dataclasses.is_dataclass(hint) else hint
