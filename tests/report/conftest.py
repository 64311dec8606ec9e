"""Fixtures of evaluation tasks, of an encoder whose vectors are counts of words, and of reports in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.conftest import bag_of_words, retrieval_folder, sts_folder  # noqa: F401
from tests.report.showing import CHROMIUM, Shown


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium for this package (tests of other packages run event loops of their own); skipped where it is absent."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="install playwright to test the report")
    if not CHROMIUM.exists():
        pytest.skip(f"install Chromium as {CHROMIUM} to test the report")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser) -> Iterator[Callable[..., Shown]]:
    """Opens a report without a network, in a browser context of its own."""
    contexts = []

    def opened(file: Path, **options: Any) -> Shown:
        contexts.append(browser.new_context(offline=True, **options))
        contexts[-1].set_default_timeout(60_000)
        return Shown(contexts[-1].new_page(), file)

    yield opened
    for context in contexts:
        context.close()
