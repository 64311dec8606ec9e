"""Mappings whose keys are another library's: which are accepted and of what type, which are refused and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Keys:
    """Annotation of a mapping: it may have these keys only, each with a value of its type. None of them is required.

    Numbers are checked strictly: text and booleans are no numbers, and neither NaN nor infinity is accepted.

    Args:
        types: types by key, with pydantic's constraints.
        refused: keys that the class has and that are not taken here, with the reason.
        of: what the keys belong to, for messages.
    """

    def __init__(self, types: Mapping[str, Any], *, refused: Mapping[str, str] | None = None, of: str = "") -> None:
        self.types, self.refused, self.of = dict(types), dict(refused or {}), of

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of a mapping with these keys."""
        return core_schema.typed_dict_schema(
            {
                name: core_schema.typed_dict_field(handler.generate_schema(kind), required=False)
                for name, kind in self.types.items()
            },
            extra_behavior="forbid",
            config=core_schema.CoreConfig(strict=True, allow_inf_nan=False),
        )
