"""The table of memory by GPU is what the plan gives for the recipe of its page."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("memory_by_gpu", ROOT / "scripts" / "memory_by_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.planned = functools.cache(module.planned)
    return module


def test_the_page_has_every_row_and_one_of_them_is_current(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    lines = page.split(script.BEGIN)[1].split(script.END)[0].split("\n")
    labels = [tuple(line.split(" | ")[:2]) for line in lines if line.startswith("| ")]
    names = [(f"| {model.partition('/')[2]}", method) for model in script.MODELS for method in script.METHODS]
    assert labels == [("| model", "trained"), *names]
    assert script.row(script.MODELS[0], "LoRA") in lines


def test_minutes_are_those_of_a_plan_for_the_gpu(script: ModuleType) -> None:
    """The script plans for one GPU, and takes memory and speed of the others."""
    here, other = (script.planned(script.MODELS[0], "LoRA", **gpu) for gpu in ({}, {"gpu": "l4"}))
    assert here.bytes["peak"] == other.bytes["peak"]
    assert script.minutes(here, "l4") == pytest.approx(60 * other.hours)
    assert script.minutes(script.planned("Qwen/Qwen3-0.6B", "full"), "3060") is None


@pytest.mark.slow
def test_the_whole_table_is_current(script: ModuleType) -> None:
    assert script.main(check=True), "run: python scripts/memory_by_gpu.py"
