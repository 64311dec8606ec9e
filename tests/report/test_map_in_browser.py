"""Geometry and map in Chromium: selection in one map, and texts and names with markup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from embrew.report.page import write_report
from embrew.report.sections import geometry
from tests.report.showing import Shown
from tests.report.subjects import HOSTILE_MODELS
from tests.report.tasks import retrieval, subject_of, write_rows

pytest.importorskip("vl_convert", reason="install embrew[report] to test the report")

MARKUP = "<img src=x onerror=\"document.title='run'\"></script><b>{{ 7 * 7 }}</b>"
CHOSEN = '#map .mark-symbol.role-mark path[opacity="0.75"]'


@pytest.mark.slow
def test_a_selection_is_shown_in_all_maps_and_listed(show: Callable[..., Shown], tmp_path: Path, bag_of_words) -> None:
    task = retrieval(tmp_path / "pets")
    rows = [{"_id": f"{MARKUP}{i}", "title": "", "text": f"{MARKUP} {i % 7} {i % 3} {i % 2}"} for i in range(30)]
    write_rows(tmp_path / "pets", rows, "corpus.jsonl")
    lines = [f"q{i}\t{MARKUP}{i}\t1\n" for i in range(12)]
    (tmp_path / "pets" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    names = [f"q{i}" for i in range(12)]
    models = HOSTILE_MODELS[:2]
    examples = {
        model: {"pets": {"score": [0.5] * 12, "query": names, "rank": [1 + i] * 12, "top": [[]] * 12}}
        for i, model in enumerate(models)
    }
    made = subject_of({"pets": task}, examples)
    measured = {"geometry": {model: geometry.measure(bag_of_words, made) for model in models}}
    write_report(replace(made, measured=measured), tmp_path / "report.html")
    shown = show(tmp_path / "report.html", viewport={"width": 1200, "height": 900})
    page = shown.page
    assert page.locator("#geometry .drawing svg.marks").count() == 3  # spectrum, cosines, lengths
    assert page.locator(CHOSEN).count() == 2 * 30  # nothing is selected
    first = page.locator("#map-0 [class*=_group] > g > path.background").first  # without titles and legend
    first.scroll_into_view_if_needed()
    box = first.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 3, steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.querySelectorAll('#map-0-texts li').length > 0")
    listed = page.locator("#map-0-texts li").all_inner_texts()
    assert 0 < len(listed) < 30
    assert page.locator("#map-0-count").inner_text() == f"{len(listed)} texts are selected."
    page.wait_for_function(f"() => document.querySelectorAll('{CHOSEN}').length === {2 * len(listed)}")
    assert all(text.startswith("<img src=x onerror=") for text in listed)
    assert page.title() != "run" and page.locator("main img, main b:has-text('49')").count() == 0
    assert shown.problems == []
