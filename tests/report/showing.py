"""Reports in Chromium: opened from disk, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
DRAWN = """() => [...document.querySelectorAll(".drawing")].every(
  (one) => !one.clientWidth || one.querySelector("svg, canvas"))"""
MARKS = """(all) => all.map((one) => {
  const painted = (canvas) => new Set(new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size - 1;
  const picture = one.querySelector("svg.marks, canvas.marks"), box = picture?.getBoundingClientRect();
  const marks = [...one.querySelectorAll(".role-mark path, .role-mark line, .role-mark text")];
  const size = Math.min(box?.width ?? 0, box?.height ?? 0);
  return [one.id, size, picture?.tagName === "CANVAS" ? painted(picture) : marks.length];
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

    def charts(self) -> dict[str, tuple[float, int]]:
        """Return the smaller side in pixels, and the number of marks, of each chart."""
        return {name: (size, marks) for name, size, marks in self.page.locator(".drawing").evaluate_all(MARKS)}

    def _check(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.problems.append(f"requested {url}")
