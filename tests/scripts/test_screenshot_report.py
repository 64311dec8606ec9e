"""The picture of a report: its size, what is in it, and errors of the page."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed")]


@pytest.fixture
def photograph() -> Callable[..., None]:
    pytest.importorskip("playwright", reason="the extra dev is not installed")
    script: Any = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "screenshot_report.py"))
    return lambda page, picture: script["photograph"](page, picture, width=300, height=200, chromium=str(CHROMIUM))


def test_the_first_screen_is_in_the_picture(photograph: Callable[..., None], tmp_path: Path) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    boxes = "<div style='height:200px;background:rgb(0,128,255)'></div><div style='height:900px;background:red'></div>"
    page.write_text(f"<style>body{{margin:0}}</style>{boxes}")
    photograph(page, picture)
    image = pytest.importorskip("PIL.Image").open(picture).convert("RGB")
    assert image.size == (300, 200)
    assert {colour for _, colour in image.getcolors()} == {(0, 128, 255)}


def test_an_error_of_the_page_is_an_error(photograph: Callable[..., None], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<script>throw new Error('no data')</script>")
    with pytest.raises(RuntimeError, match=r"report\.html reports an error: no data"):
        photograph(page, tmp_path / "report.png")
