"""The estimates of `embrew plan` beside what was measured."""

from __future__ import annotations

from typing import Any

from embrew.recipe import Recipe


def compare(recipe: Recipe, measured_gb: float | None) -> dict[str, Any]:
    return {}
