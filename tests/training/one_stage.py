"""A recipe of one stage, in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embrew.recipe import Recipe


def one_stage(
    model: Path,
    data: Path | dict[str, Any],
    encoder: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **stage: Any,
) -> Recipe:
    """A contrastive stage of four rows a batch with a LoRA, but for what is given."""
    default = {
        "name": "one",
        "objective": {"type": "contrastive"},
        "data": data if isinstance(data, dict) else {"path": str(data)},
        "batch": {"size": 4},
    }
    return Recipe.from_values(
        {
            "encoder": {"model": str(model), "pooling": {"mode": "mean"}, "lora": {"r": 4}, **(encoder or {})},
            "stages": [{**default, **stage, "training": {"use_cpu": True, **(training or {})}}],
        }
    )
