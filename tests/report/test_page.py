"""The report in Chromium: opened from disk, with nothing loaded from a network."""

from __future__ import annotations

import io
import json
import math
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from embrew.report.page import as_json, write_report
from tests.report.subjects import HOSTILE_MODELS, HOSTILE_TASKS, subject

pytest.importorskip("vl_convert", reason="install embrew[report] to test the report")

REDRAWN = """(old) => [...document.querySelectorAll(".drawing svg text")].every(
  (one) => !old.includes(one.getAttribute("fill")))"""
CONTRASTS = """() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const fill = (colour) => { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); };
  const luminance = () => [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  return [...document.querySelectorAll("main *, nav a, button")]
    .filter((one) => one.checkVisibility() && !one.closest("svg, .vega-actions, .hidden")
      && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((one) => {
      const layers = [];
      for (let at = one; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
      layers.forEach(fill);
      const ground = luminance();
      fill(getComputedStyle(one).color);
      const ink = luminance();
      return [one.textContent.trim().slice(0, 40), (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05)];
    });
}"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A report whose names hold markup."""
    file = tmp_path_factory.mktemp("report") / "hostile.html"
    write_report(subject(HOSTILE_MODELS, HOSTILE_TASKS, seeds=2), file)
    return file


def test_report_opens_from_disk(show, hostile):
    shown = show(hostile, viewport={"width": 360, "height": 740}, color_scheme="light")
    page = shown.page
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    shown.wait()
    assert page.title() == f"{len(HOSTILE_MODELS)} models compared"
    assert page.locator("main img, main b:not(.help b), main script:not([type='application/json'])").count() == 0
    assert page.locator("#scores thead").first.locator("th bdi").all_inner_texts() == list(HOSTILE_MODELS)
    assert set(page.locator("#scores tr:not(.group) > th[scope=row] > bdi").all_inner_texts()) >= set(HOSTILE_TASKS)
    charts = shown.charts()
    assert "differences" in charts and min(min(found) for found in charts.values()) > 0, charts
    assert charts["differences"][1] >= 2 * (len(HOSTILE_MODELS) - 1) * len(HOSTILE_TASKS)
    assert page.evaluate("document.documentElement.scrollWidth") == 360

    for link in page.locator("nav a").all():
        link.click()
        target = page.locator(link.get_attribute("href"))
        top = target.evaluate("one => one.getBoundingClientRect().top")
        end = page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert abs(top) < 40 or end, (link.get_attribute("href"), top)

    light = shown.colours()
    page.get_by_role("button", name="Switch to dark colours").click()
    page.wait_for_function(REDRAWN, arg=list(light[1]))
    dark = shown.colours()
    assert light[0] != dark[0] and len(dark[1]) == len(light[1]) > 1
    assert shown.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_and_structure_is_in_order(show, hostile, scheme):
    shown = show(hostile, color_scheme=scheme)
    page = shown.page
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1 and max(np.diff(levels)) <= 1
    assert page.locator("th:not([scope])").count() == 0 and page.locator("th").count() > 20
    assert all(page.locator("figure:has(.drawing) > figcaption").all_inner_texts())
    assert page.locator(".drawing svg.marks:not([aria-hidden=true])").count() == 0
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 50 and min(ratio for _, ratio in contrasts) >= 4.5, sorted(contrasts, key=lambda c: c[1])[
        :3
    ]


@pytest.mark.slow
def test_print_is_light_and_whole(show, tmp_path):
    names = [f"model number {i}" for i in range(10)]
    write_report(subject(names, [f"task {i}" for i in range(12)], seeds=3), tmp_path / "ten.html")
    shown = show(tmp_path / "ten.html", color_scheme="dark", viewport={"width": 703, "height": 1000})  # A4 at 96 dpi
    page = shown.page
    dark = shown.colours()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # what it starts ends before the next task of the browser
    light = shown.colours()
    assert not light[1] & dark[1] and "rgb(36, 33, 30)" in light[1]
    page.emulate_media(media="print")
    tables = page.locator("table").evaluate_all(
        "all => all.filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect().right)"
    )
    assert len(tables) >= 2 and max(tables) <= 703
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(REDRAWN, arg=list(light[1]))
    page.emulate_media(media="null")
    pypdf = pytest.importorskip("pypdf", reason="install pypdf to read the printed report")
    printed = pypdf.PdfReader(io.BytesIO(page.pdf(format="A4")))
    text = unicodedata.normalize("NFKC", " ".join(sheet.extract_text() for sheet in printed.pages))  # no ligatures
    assert "difference in points" in text and " ".join(text.split()).count("model number 9") >= 3
    assert "Skip to" not in text
    assert shown.problems == []


@pytest.mark.slow
def test_tooltips_and_pictures_of_charts(show, hostile):
    shown = show(hostile)
    page = shown.page
    page.locator("#differences .role-mark path").first.hover(force=True)
    tooltip = page.locator("#vg-tooltip-element")
    tooltip.wait_for(state="visible")
    assert (
        any(name[:40] in tooltip.inner_text() for name in HOSTILE_MODELS)
        and tooltip.locator("img, b, script").count() == 0
    )
    page.locator("#differences summary").click()
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.locator("#differences").get_by_text(f"Save as {kind}").click()
        assert download.value.suggested_filename == f"differences.{kind.lower()}"
    assert shown.problems == [] and page.title() == f"{len(HOSTILE_MODELS)} models compared"


@pytest.mark.slow
def test_scripts_of_others_do_not_run(show, hostile, tmp_path):
    page = hostile.read_text(encoding="utf-8")
    planted = tmp_path / "planted.html"
    planted.write_text(
        page.replace("</main>", "<script>document.title='run'</script><img src='http://localhost:9/x.png'></main>")
    )
    shown = show(planted)
    assert shown.page.title() != "run"
    assert len([problem for problem in shown.problems if "Content Security Policy" in problem]) == 2


def test_json_cannot_end_its_script_element():
    value = {
        "</script>": ["<!--", "&amp;", "\u2028\u2029"],
        "numbers": [1.5, math.nan, math.inf],
    }
    written = str(as_json(value))
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {**value, "numbers": [1.5, None, None]}
