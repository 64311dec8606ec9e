"""Types and ranges of the settings of objectives, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from embrew.config.validation import Fields, KeyPath, check_fields, fields_model

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
CosineMargin = Annotated[float, Field(ge=-2, le=2)]  # a difference of two cosines
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]  # 0: none


def check_values(kind: type, settings: Mapping[str, Any], *, path: KeyPath = (), words: str = "") -> Fields:
    """Check the settings of an objective's class, which are its fields; see `check_fields`."""
    return check_fields(_model(kind), settings, path=path, words=words)


@cache
def _model(kind: type) -> type[Fields]:
    return fields_model(kind)
