"""The pictures of the methods' pages: those committed are those drawn, and they can be read in light and dark mode."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "draw_methods.py"))
PICTURES: dict[str, str] = SCRIPT["pictures"]()
CHROMIUM = Path("/usr/bin/chromium")
MEASURE = """() => {
    const boxes = [...document.querySelectorAll('text')].map(t => ({words: t.textContent, ...rect(t)}));
    function rect(e) {
        const {left, right, top, bottom} = e.getBoundingClientRect();
        return {left, right, top, bottom};
    }
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    const panels = [...document.querySelectorAll('rect.w')].map(rect);
    const inside = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
    const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = c => {  // relative luminance, WCAG 2.2
        const [r, g, b] = c.match(/[0-9.]+/g).map(v => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = [];
    for (const t of document.querySelectorAll('text')) {
        const a = rect(t);
        const behind = [...document.querySelectorAll('rect,circle')].filter(e => inside(a, rect(e))).pop();
        const [x, y] = [getComputedStyle(t).fill, getComputedStyle(behind).fill].map(light);
        contrast.push([(Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05), t.textContent]);
    }
    const over = (a, others) => others.filter(b => meet(a, b)).map(b => a.words + ' | ' + b.words);
    const overlaps = boxes.flatMap((a, i) => over(a, boxes.slice(i + 1)));
    const outside = boxes.filter(a => !panels.some(p => inside(a, p))).map(a => a.words);
    return {overlaps, outside, contrast: contrast.sort((a, b) => a[0] - b[0])[0], texts: boxes.length};
}"""


def test_there_is_a_picture_for_every_page() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert set(PICTURES) <= pages and len(PICTURES) == 6
    assert {path.name for path in SCRIPT["FOLDER"].glob("*")} == {f"{name}.svg" for name in PICTURES}


@pytest.mark.parametrize("name", PICTURES)
def test_committed_pictures_are_those_drawn(name: str) -> None:
    committed = (SCRIPT["FOLDER"] / f"{name}.svg").read_bytes()
    assert committed.decode() == PICTURES[name], "run python scripts/draw_methods.py"
    assert len(committed) < 40_000
    root = ElementTree.fromstring(committed)
    for part in ("title", "desc"):
        assert len(root.findtext(f"{{http://www.w3.org/2000/svg}}{part}") or "") > 20
    assert committed.count(b"http") == 1, "the name of the namespace and no other address"
    assert "@import" not in PICTURES[name] and "@font-face" not in PICTURES[name]


def test_grids_show_who_attends_to_whom() -> None:
    def cells(name: str, panel: int) -> int:
        grid = PICTURES[name].split("attends to →")[panel + 1].split("<rect")[0]
        return sum(len(re.findall("z", path)) for path in re.findall(r'class="\w+ c" d="([^"]*)"', grid))

    assert cells("llm2comp", 0) == 8 * 8  # BOS, 4 tokens, 3 memory tokens, in both directions
    assert cells("llm2comp", 1) == 7 * 8 // 2
    assert cells("lbr", 0) == 9 * 10 // 2 - 3 * 3  # 3 tokens of Y do not attend to 3 of X
    assert cells("baselines", 8) == 9 * 10 // 2 - 3 * 3  # the second prompt and its memory tokens, to the first block


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"install Chromium as {CHROMIUM} to look at the pictures")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(scheme: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="install playwright to look at the pictures")
    with playwright.sync_playwright() as session:
        browser = session.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 900}, color_scheme=scheme)
        for name, picture in PICTURES.items():
            page.set_content(f'<body style="margin:0">{picture}</body>')
            found = page.evaluate(MEASURE)
            assert found["texts"] > 15
            assert not found["overlaps"] and not found["outside"], (name, found)
            assert found["contrast"][0] >= 4.5, (name, found["contrast"])
        browser.close()
