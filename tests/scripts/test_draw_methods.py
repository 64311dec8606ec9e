"""The pictures of the methods' pages: those committed are those drawn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "draw_methods.py"))
PICTURES: dict[str, str] = SCRIPT["pictures"]()


def test_there_is_a_picture_for_every_page():
    pages = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert set(PICTURES) <= pages and len(PICTURES) == 6
    assert {path.name for path in SCRIPT["FOLDER"].glob("*")} == {f"{name}.svg" for name in PICTURES}


@pytest.mark.parametrize("name", PICTURES)
def test_committed_pictures_are_those_drawn(name):
    committed = (SCRIPT["FOLDER"] / f"{name}.svg").read_bytes()
    assert committed.decode() == PICTURES[name], "run python scripts/draw_methods.py"
    assert committed.count(b"http") == 1, "the name of the namespace and no other address"


def test_grids_show_who_attends_to_whom():
    def cells(name: str, panel: int) -> int:
        grid = PICTURES[name].split("attends to →")[panel + 1].split("<rect")[0]
        return sum(len(re.findall("z", path)) for path in re.findall(r'class="\w+ c" d="([^"]*)"', grid))

    assert cells("llm2comp", 0) == 8 * 8  # BOS, 4 tokens, 3 memory tokens, in both directions
    assert cells("llm2comp", 1) == 7 * 8 // 2
    assert cells("lbr", 0) == 9 * 10 // 2 - 3 * 3  # 3 tokens of Y do not attend to 3 of X
    assert cells("baselines", 8) == 9 * 10 // 2 - 3 * 3  # the second prompt and its memory tokens, to the first block
