"""The table of encoders and runtimes has a column for every runtime, and says what their checks say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from embrew.runtimes.registry import RUNTIMES
from tests.hard_texts import real_tokenizer_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runtime_table", ROOT / "scripts" / "runtime_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def rows_of(script: ModuleType) -> dict[str, list[str]]:
    """The rows of the page's tables, by each name in their first cell."""
    part = script.PAGE.read_text(encoding="utf-8").split(script.BEGIN)[1].split(script.END)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")
    ]
    return {name: row[1:] for row in cells if not row[0].startswith("-") for name in row[0].split("; ")}


def test_the_page_has_every_row_and_column(script):
    rows = rows_of(script)
    assert [name.split(" ")[0] for name in rows.pop("encoder")] == list(RUNTIMES)
    assert set(rows) == {form.name for form in (*script.FORMS, *script.OTHER_FAMILIES)}
    for name, cells in rows.items():
        assert len(cells) == len(RUNTIMES), name
        assert all(re.fullmatch(r"run|simulated|written|accepted|no", cell) for cell in cells), name


@pytest.mark.slow
def test_every_row_is_as_the_checks_say(script, tmp_path):
    real_tokenizer_folder("mistral")
    rows = rows_of(script)
    for form in (*script.FORMS, *script.OTHER_FAMILIES):
        refused = script.refusals(form, script.encoder_of(form, tmp_path))
        assert [cell.startswith("no") for cell in rows[form.name]] == [name in refused for name in RUNTIMES], form.name
