"""Fixtures of evaluation tasks, of an encoder whose vectors are counts of words, and of reports in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

from embrew.report import page
from tests.evaluation.conftest import bag_of_words, retrieval_folder, sts_folder  # noqa: F401
from tests.report.showing import CHROMIUM, Shown


class Compiled(jinja2.BytecodeCache):
    """Compiled templates in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Any) -> None:
        if bucket.key in self.kept:
            bucket.bytecode_from_string(self.kept[bucket.key])

    def dump_bytecode(self, bucket: Any) -> None:
        self.kept[bucket.key] = bucket.bytecode_to_string()


@pytest.fixture(scope="package", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Templates are compiled for the first report only, which takes longer than all that a test does with it."""
    compiled, made = Compiled(), page._environment

    def environment() -> jinja2.Environment:
        found = made()
        found.bytecode_cache = compiled
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_environment", environment)
        yield


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
