"""Queries won and lost in Chromium, with texts that hold markup."""

from __future__ import annotations

from typing import Any

import pytest

from embrew.report.page import write_report
from embrew.report.queries import DOCUMENTS, TEXT_LENGTH
from tests.report.changed import ranked, result, retrieval_folder, subject
from tests.report.showing import Shown
from tests.report.tasks import write_rows

pytest.importorskip("vl_convert", reason="install embrew[report] to test the report")

RUN = "document.title='run'"
HOSTILE = [
    f"<script>{RUN}</script>",
    f'</script><script>{RUN}</script><img src=x onerror="{RUN}">',
    "<!-- <script> not closed",
    "a & b &amp; c &lt;b&gt;",
    "\"double\" 'single' `back`",
    "\u202eשלום עולם\u202c مرحبا",
    "🦊👩‍👩‍👧 ünï → 狐",
    "null \x00 character",
    "line\u2028separator\u2029and\nbreak",
    "{{ 7 * 7 }} {% raw %} ${RUN}",
]
SHOWN = [text.replace("\x00", "") for text in HOSTILE]  # HTML has no null character
LONG = "long 🦊 <b>text</b> " * 6000  # more than 100 kB


@pytest.fixture(scope="module")
def report(tmp_path_factory, browser) -> Shown:
    """A report on queries, pairs and classes whose texts, ids and labels are hostile; opened without a network."""
    folder = tmp_path_factory.mktemp("data")
    ids = [f"{text.replace(chr(0), '').replace(chr(10), ' ').replace(' ', '_')}-{i}" for i, text in enumerate(HOSTILE)]
    queries = {f"q{name}": text for name, text in zip(ids, HOSTILE, strict=True)}
    documents = {**dict(zip(ids, HOSTILE, strict=True)), "long": LONG}
    qrels = [f"q{name} {name} 1" for name in ids]
    # Query i is won if i is even: its document moves from rank 3 to 1, or from 2 to beyond 100.
    tops = ({}, {})
    for i, name in enumerate(ids):
        others = ["long", *(other for other in ids if other != name)]
        for k, rank in enumerate([(3, 2), (1, None)]):
            position = rank[i % 2]
            top = others[:10] if position is None else [*others[: position - 1], name, *others[position - 1 :]][:10]
            tops[k][f"q{name}"] = (position, top)
    rows = [{"sentence1": text, "sentence2": LONG, "score": float(i)} for i, text in enumerate(HOSTILE)]
    write_rows(folder / "pairs", rows)
    gold = [row["score"] for row in rows]
    pairs = [
        result("pairs", "sts", len(gold), predicted=[value / 10 for value in order], gold=gold)
        for order in (gold, gold[::-1])
    ]
    classes = [
        result("classes", "classification", 2, score=[0.0, 0.0], gold=HOSTILE[:2], predicted=predicted)
        for predicted in (HOSTILE[2:4], HOSTILE[4:6])
    ]
    reported = subject(
        {
            "<b>base</b>": [ranked("queries", tops[0]), pairs[0], classes[0]],
            f"<img src=x onerror={RUN}>": [ranked("queries", tops[1]), pairs[1], classes[1]],
            "same": [ranked("queries", tops[0]), pairs[0], classes[0]],
        },
        retrieval_folder(folder / "queries", queries, documents, qrels),
        folder / "pairs",
    )
    file = folder / "report.html"
    write_report(reported, file)
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 900})
    return Shown(context.new_page(), file)


@pytest.fixture
def page(report) -> Any:
    report.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    return report.page


def entries(page: Any, number: int) -> Any:
    """The entries of a list: queries, pairs and classes, each of two models."""
    return page.locator("#queries details.list").nth(number).locator("details.change, tbody tr")


def test_queries_are_listed(page):
    shown = entries(page, 0).locator(".query").evaluate_all("all => all.map((one) => one.textContent)")
    lost, won = SHOWN[1::2], SHOWN[::2]
    assert shown == [*won, *lost]
    summaries = page.locator("#queries details.list > summary").all_inner_texts()
    assert [summary.rpartition(": ")[2] for summary in summaries[:2]] == ["5 won, 5 lost", "0 won, 0 lost"]
    assert [entries(page, number).count() for number in range(6)] == [10, 0, 10, 0, 4, 0]


def test_the_nearest_documents_of_both_models_stand_side_by_side(page):
    sides = entries(page, 0).nth(0).locator(".sides > div")
    assert sides.locator("h3").all_inner_texts() == ["<b>base</b>: rank 3", f"<img src=x onerror={RUN}>: rank 1"]
    assert [sides.nth(k).locator("li").count() for k in (0, 1)] == [DOCUMENTS, DOCUMENTS]
    for k, rank in ((0, 3), (1, 1)):
        marked = (
            sides.nth(k).locator("li").evaluate_all("all => all.map((one) => one.innerText.includes('✓ relevant'))")
        )
        assert marked == [number == rank for number in range(1, DOCUMENTS + 1)]
        assert sides.nth(k).locator("li").nth(rank - 1).locator("p").evaluate("one => one.textContent") == HOSTILE[0]
    assert entries(page, 0).nth(5).locator("h3").last.inner_text() == f"<img src=x onerror={RUN}>: not in the first 100"


def test_pairs_and_classes_are_tables(page):
    first = entries(page, 2).nth(0).locator("td")
    assert first.nth(0).inner_text() == "▼ lost"
    assert first.nth(1).locator("p").first.evaluate("one => one.textContent") == HOSTILE[0]
    long = first.nth(1).locator("p").last.evaluate("one => one.textContent")
    assert long == f"{LONG[:TEXT_LENGTH]}… ({len(LONG):,} characters)"
    assert [first.nth(i).inner_text() for i in range(2, 5)] == ["0\nrank 1", "0.000\nrank 1", "0.900\nrank 10"]
    texts = entries(page, 4).locator("td").evaluate_all("all => all.map((one) => one.textContent.trim())")
    assert texts[:6] == ["▲ won", HOSTILE[1], HOSTILE[3], "1", "0", "1"]


def test_texts_stay_texts(report, page):
    assert page.locator("#queries :is(img, script, b)").count() == 0
    names = entries(page, 0).locator(".asked bdi").evaluate_all("all => all.map((one) => one.textContent)")
    assert len(names) == 10 and all(name.startswith("q") for name in names)
    assert page.evaluate("document.documentElement.scrollWidth") == 1000
    assert page.title() != "run"
    assert report.problems == []
