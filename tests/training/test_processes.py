"""A stage is resumed in the number of processes that it was begun in."""

from __future__ import annotations

from pathlib import Path

import pytest

from embrew.recipe import Recipe
from embrew.training.stage_json import StageSettings, read_stage


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    settings, work = StageSettings(Recipe.load("baselines/nli-nano"), tmp_path), tmp_path / "one.work"
    settings.begin(work, 0, settings.of_stage(0), processes=2)
    settings.begin(work, 0, settings.of_stage(0), processes=2)
    with pytest.raises(ValueError, match="was begun in 2 processes, and is resumed in 1; resume it in 2, or remove"):
        settings.begin(work, 0, settings.of_stage(0), processes=1)


def test_a_damaged_number(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text(
        '{"format": 3, "hash": "a", "recipe": {}, "arithmetic": {}, "content": {}, "processes": 0}'
    )
    with pytest.raises(ValueError, match="processes is not a number of processes"):
        read_stage(tmp_path)
