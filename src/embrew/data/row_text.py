"""A row as one line of text, for log lines and the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def row_text(row: Mapping[str, Any]) -> str:
    """Return the columns of a row that hold something, as `query: "a"; negatives: "b", "c"`."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(shown, value))
        return json.dumps(value, ensure_ascii=False)

    return "; ".join(f"{name}: {shown(value)}" for name, value in row.items() if value not in (None, []))
