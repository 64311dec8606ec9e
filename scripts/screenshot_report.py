"""Write a picture of a report: `python scripts/screenshot_report.py NAME=RESULTS NAME=RESULTS [--output FILE.png]`.

Runs `embrew compare` with all other arguments, opens the page in headless Chromium and photographs its first screen.
The browser is `--chromium`, by default the `chromium` of the search path; needs the extra `dev` (playwright).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from embrew.files.writing import atomic_path

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"


def main() -> None:
    """Compare, open, photograph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PICTURE, help="file of the picture; docs/images/report.png")
    parser.add_argument("--size", default="1200x1000", help="width x height of the window in pixels; 1200x1000")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="path of Chromium")
    arguments, compared = parser.parse_known_args()
    width, height = map(int, arguments.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "embrew", "compare", *compared, "--output", str(page), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        photograph(page, arguments.output, width=width, height=height, chromium=arguments.chromium)


def photograph(page: Path, picture: Path, *, width: int, height: int, chromium: str | None) -> None:
    """Write the first screen of a page as PNG, once its charts are drawn.

    Raises:
        RuntimeError: the page reports an error.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        errors: list[str] = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(page.resolve().as_uri())
        tab.wait_for_load_state("networkidle")
        with atomic_path(picture) as temporary:
            tab.screenshot(path=temporary, type="png")
        browser.close()
    if errors:
        raise RuntimeError(f"{page} reports an error: {errors[0]}")


if __name__ == "__main__":
    main()
