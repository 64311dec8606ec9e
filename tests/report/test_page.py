"""The report in Chromium: opened from disk, with nothing loaded from a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embrew.report.page import write_report
from tests.report.subjects import HOSTILE_MODELS, HOSTILE_TASKS, subject

pytest.importorskip("vl_convert", reason="install embrew[report] to test the report")
sync_api = pytest.importorskip("playwright.sync_api", reason="install playwright to test the report")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"install Chromium as {CHROMIUM} to test the report")

DRAWN = """() => [...document.querySelectorAll(".drawing")].every(
  (one) => !one.clientWidth || one.querySelector("svg, canvas"))"""
REDRAWN = """(old) => [...document.querySelectorAll(".drawing svg text")].every(
  (one) => !old.includes(one.getAttribute("fill")))"""
MARKS = """(all) => all.map((one) => {
  const picture = one.querySelector("svg.marks, canvas.marks"), box = picture?.getBoundingClientRect();
  const marks = [...one.querySelectorAll(".role-mark path, .role-mark line, .role-mark text")];
  return [one.id, Math.min(box?.width ?? 0, box?.height ?? 0), picture?.tagName === "CANVAS" || marks.length];
})"""


class Shown:
    """A report, what it requests, and what it says in the console."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("request", lambda request: self._check(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text))
        page.goto(file.as_uri())
        self.wait()

    def wait(self) -> None:
        """Wait until all charts that can be seen are drawn."""
        self.page.wait_for_function(DRAWN)

    def colours(self) -> tuple[str, set[str]]:
        """Return the colours of the background, and of texts in charts."""
        ground = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        texts = self.page.locator(".drawing svg text").evaluate_all("all => all.map((one) => one.getAttribute('fill'))")
        return ground, set(texts)

    def _check(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.problems.append(f"requested {url}")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose names hold markup."""
    file = tmp_path_factory.mktemp("report") / "hostile.html"
    write_report(subject(HOSTILE_MODELS, HOSTILE_TASKS, seeds=2), file)
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Shown]]:
    """Opens a report without a network, in a browser context of its own."""
    contexts = []

    def opened(file: Path, **options: Any) -> Shown:
        contexts.append(browser.new_context(offline=True, **options))
        contexts[-1].set_default_timeout(60_000)
        return Shown(contexts[-1].new_page(), file)

    yield opened
    for context in contexts:
        context.close()


def test_report_opens_from_disk(show: Callable[..., Shown], hostile: Path) -> None:
    shown = show(hostile, viewport={"width": 360, "height": 740}, color_scheme="light")
    page = shown.page
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    shown.wait()
    assert page.title() == f"{len(HOSTILE_MODELS)} models compared"
    assert page.locator("main img, main b:not(.help b), main script:not([type='application/json'])").count() == 0
    assert page.locator("#scores thead").first.locator("th bdi").all_inner_texts() == list(HOSTILE_MODELS)
    assert set(page.locator("#scores tr:not(.group) > th[scope=row] > bdi").all_inner_texts()) >= set(HOSTILE_TASKS)
    charts = page.locator(".drawing").evaluate_all(MARKS)
    assert {name for name, *_ in charts} >= {"differences", "seeds"}
    assert all(size > 50 and marks for _, size, marks in charts), charts
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
