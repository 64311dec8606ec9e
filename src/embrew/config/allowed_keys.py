"""Mappings with keys of another library: keys that are allowed, with types, and keys that are refused, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

REFUSED = "refused"  # the type of the error


class AllowedKeys:
    """Annotation of a mapping: its allowed keys, each with a type. None of them is required.

    Numbers are checked strictly: strings, booleans, NaN and infinity are refused.

    Args:
        types: types by key, with pydantic's constraints.
        refused: keys of the library's class that are refused, with the reason.
        of: the library's class, for messages.
    """

    def __init__(self, types: Mapping[str, Any], *, refused: Mapping[str, str] | None = None, of: str = "") -> None:
        self.types, self.refused, self.of = dict(types), dict(refused or {}), of

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a mapping with these keys."""
        fields = {name: handler.generate_schema(kind) for name, kind in self.types.items()}
        fields |= {
            name: core_schema.no_info_before_validator_function(_refusing(reason), core_schema.any_schema())
            for name, reason in self.refused.items()
        }
        return core_schema.typed_dict_schema(
            {name: core_schema.typed_dict_field(schema, required=False) for name, schema in fields.items()},
            extra_behavior="forbid",
            config=core_schema.CoreConfig(strict=True, allow_inf_nan=False),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema, without the refused keys."""
        found = handler.resolve_ref_schema(handler(schema))
        properties = {key: value for key, value in found.get("properties", {}).items() if key not in self.refused}
        return {**found, "properties": properties}


def _refusing(reason: str) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise PydanticCustomError(REFUSED, "{reason}", {"reason": reason})

    return refuse
