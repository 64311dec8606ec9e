"""Queries won and lost in Chromium: lists, filters and search, with texts that hold markup."""

from __future__ import annotations

from typing import Any

import pytest

from embrew.report.page import write_report
from embrew.report.queries import TEXT_LENGTH
from tests.report.changed import ranked, result, retrieval_folder, subject, write
from tests.report.showing import Shown

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
LONG = "long 🦊 <b>text</b> " * 6000  # more than 100 kB


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Shown:
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
            place = rank[i % 2]
            top = others[:10] if place is None else [*others[: place - 1], name, *others[place - 1 :]][:10]
            tops[k][f"q{name}"] = (place, top)
    rows = [{"sentence1": text, "sentence2": LONG, "score": float(i)} for i, text in enumerate(HOSTILE)]
    write(folder / "pairs" / "test.jsonl", rows)
    gold = [row["score"] for row in rows]
    pairs = [
        result("pairs", "sts", len(gold), predicted=[one / 10 for one in order], gold=gold)
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
def page(report: Shown) -> Any:
    return report.page


def choose(page: Any, task: str, model: int = 0, outcome: str = "all", search: str = "") -> None:
    page.select_option("#queries-task", index=["queries", "pairs", "classes"].index(task))
    page.select_option("#queries-model", index=model)
    page.select_option("#queries-outcome", outcome)
    page.fill("#queries-search", search)


def shown(page: Any) -> list[str]:
    return page.locator("#queries-list .query").evaluate_all("all => all.map((one) => one.textContent)")


def test_queries_are_listed_filtered_and_searched(page: Any) -> None:
    choose(page, "queries")
    lost, won = HOSTILE[1::2], HOSTILE[::2]
    assert shown(page) == [*lost, *won]  # 2 to 101 is a larger change than 3 to 1
    assert page.locator("#queries-count").inner_text() == (
        "10 of 10 queries changed rank (5 won, 5 lost). 10 of the 10 listed match."
    )
    choose(page, "queries", outcome="won")
    assert shown(page) == won
    choose(page, "queries", outcome="lost")
    assert shown(page) == lost
    choose(page, "queries", search="</SCRIPT>")
    # In the text of the query itself, or of a document among the five nearest of a model.
    assert HOSTILE[1] in shown(page)
    choose(page, "queries", search="found in no text")
    assert shown(page) == []
    assert page.locator("#queries-count").inner_text().endswith("0 of the 10 listed match.")
    choose(page, "queries", model=1)
    assert shown(page) == []
    assert "0 of 10 queries changed rank (0 won, 0 lost)" in page.locator("#queries-count").inner_text()


@pytest.mark.slow
def test_the_five_nearest_documents_of_both_models_stand_side_by_side(page: Any) -> None:
    choose(page, "queries", outcome="won")
    entry = page.locator("#queries-list details").first
    entry.locator("summary").click()
    sides = entry.locator(".sides > div")
    sides.first.wait_for()  # filled when the entry is opened
    assert sides.locator("h4").all_inner_texts() == ["<b>base</b>: rank 3", f"<img src=x onerror={RUN}>: rank 1"]
    assert [sides.nth(k).locator("li").count() for k in (0, 1)] == [5, 5]
    for k, rank in ((0, 3), (1, 1)):
        marked = (
            sides.nth(k).locator("li").evaluate_all("all => all.map((one) => one.innerText.includes('✓ relevant'))")
        )
        assert marked == [number == rank for number in range(1, 6)]
        assert sides.nth(k).locator("li").nth(rank - 1).locator("p").evaluate("one => one.textContent") == HOSTILE[0]
    choose(page, "queries", outcome="lost")
    entry = page.locator("#queries-list details").first
    entry.locator("summary").click()
    assert entry.locator("h4").last.inner_text() == f"<img src=x onerror={RUN}>: not in the first 100"


@pytest.mark.slow
def test_long_texts_are_cut_and_shown_on_demand(page: Any) -> None:
    choose(page, "queries", outcome="won")
    page.locator("#queries-list summary").first.click()
    item = page.locator("#queries-list .sides li", has_text="long 🦊").first
    words = item.locator("p")
    assert words.evaluate("one => one.textContent") == LONG[:300] + "…"
    item.locator("button").click()
    assert words.evaluate("one => one.textContent") == LONG[:TEXT_LENGTH]
    assert item.inner_text().endswith(f"The first {TEXT_LENGTH} of {len(LONG):,} characters.")


@pytest.mark.slow
def test_pairs_and_classes_are_tables(page: Any) -> None:
    choose(page, "pairs")
    rows = page.locator("#queries-list tbody tr")
    assert rows.count() == 10
    first = rows.first.locator("td")
    assert first.nth(0).inner_text() == "▼ lost"
    assert first.nth(1).locator("p").first.evaluate("one => one.textContent") == HOSTILE[0]
    assert [first.nth(i).inner_text() for i in range(2, 5)] == ["0\nrank 1", "0.000\nrank 1", "0.900\nrank 10"]
    choose(page, "pairs", search="שלום")
    assert rows.count() == 1
    choose(page, "classes")
    texts = rows.locator("td").evaluate_all("all => all.map((one) => one.textContent)")
    assert texts[:6] == ["▲ won", HOSTILE[1], HOSTILE[3], "1", "0", "1"]
    assert rows.count() == 4


def test_texts_stay_texts(report: Shown, page: Any) -> None:
    for task in ("queries", "pairs", "classes"):
        choose(page, task)
        page.evaluate("for (const one of document.querySelectorAll('#queries details')) one.open = true")
        page.wait_for_function(
            "() => [...document.querySelectorAll('#queries details')].every((one) => one.querySelector('.sides'))"
        )
        assert page.locator("#queries :is(img, script:not([type='application/json']), b)").count() == 0
    choose(page, "queries")
    page.evaluate("for (const one of document.querySelectorAll('#queries details')) one.open = true")
    page.wait_for_function("() => document.querySelectorAll('#queries .asked').length === 10")
    asked = page.locator("#queries .asked p").evaluate_all("all => all.map((one) => one.textContent)")
    assert sorted(asked) == sorted(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth") == 1000
    assert page.title() != "run"
    assert report.problems == []
