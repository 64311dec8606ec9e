"""The page of an adaptation: its parts in order, texts that hold markup, and its width on a phone."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from embrew.adapting.outcome import RaceRow, other_of, write_page
from embrew.adapting.preparation.prepare import Prepared
from embrew.evaluation import Result
from tests.report.changed import retrieval_folder

RUN = "document.title='run'"
SCRIPT = f"<script>{RUN}</script>"
QUOTES = f"\"' onload={RUN} <b>x</b>"
LAPS = """(all) => {
  const boxes = all.map((one) => one.getBoundingClientRect());
  const lap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => lap(a, b)).map(() => i));
}"""


def row(name: str, start: str, ranks: list[int | None], **more: object) -> RaceRow:
    """Return a row whose question i has its answer at a rank; its nearest document is the answer of question 0."""
    scores, names = [1 / rank if rank else 0.0 for rank in ranks], [f"q{i}" for i in range(len(ranks))]
    examples = {"score": scores, "query": names, "rank": ranks, "top": [["d0"] for _ in names]}
    mean = sum(scores) / len(scores)
    done = Result("test", "test", "retrieval", mean, {"ndcg_at_10": mean}, 1.0, {}, examples)
    return RaceRow(name=name, start=start, dev=done, test=done, results=Path("none"), **more)  # type: ignore[arg-type]


def rows() -> list[RaceRow]:
    """Return two starts, of which the second is better trained; BM25, and its fusion with the best."""
    worse, better = [2, 1, *[9] * 10, *[1] * 12], [1, 3, *[1] * 10, *[2] * 12]
    about = {"model": "x", "dimensions": 384, "parameters": 22_000_000}
    first = row(QUOTES, QUOTES, worse[::-1], milliseconds=2.0, **about)
    start = row("own, mean", "own", worse, milliseconds=20.0, **about)
    trained = replace(row("own, trained", "own", better, milliseconds=20.0), seconds=90.0, steps=30, best_step=20)
    trained = replace(trained, model="y", dimensions=384, parameters=22_000_000)
    fusion = row("own, trained + BM25", "own", better, milliseconds=20.0, dimensions=384)
    return [first, replace(first, name=f"{QUOTES}, trained", seconds=60.0, steps=9, best_step=0), start, trained,
            row("BM25", "", [None, *[5] * 23]), fusion]  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A page whose questions, documents, names and data hold markup."""
    folder = tmp_path_factory.mktemp("out")
    texts = {f"q{i}": f"{SCRIPT} {i}" for i in range(24)}
    documents = {f"d{i}": f"</p><img src=x onerror={RUN}> {i}" for i in range(24)}
    retrieval_folder(folder / "data" / "test", texts, documents, [f"q{i} d{i} 1" for i in range(24)])
    counts = dict.fromkeys(("train_pairs", "made_pairs", "train_passages"), 40)
    counts |= {f"{split}_{what}": 24 for split in ("dev", "test") for what in
               ("queries", "documents", "trained_distractors")}  # fmt: skip
    manifest = {
        "counts": counts,
        "made_of": {"pairs": {"path": SCRIPT}, "documents": None, "seed": 42, "questions": {"writer": SCRIPT}},
        "by_document": True,
        "questions_made": False,
        "checked": {"questions": 48, "answers": 48, "texts": 80},
    }
    given = rows()
    said = [f"Use {QUOTES}.", "No faster encoder.", "Next: serve it."]
    write_page(folder, given, best=given[3], data=Prepared(folder / "data", manifest), advice=said)
    return folder / "report.html"


def test_parts_are_in_order_and_said_once(page):
    text = page.read_text()
    parts = re.findall(r'<section id="(\w+)"', text)
    assert parts == ["use", "scores", "plot", "questions", "cost", "measured"]
    plain = html.unescape(re.sub(r"<title.*?</title>|<[^>]*>", "", text.partition("<main>")[2], flags=re.S))
    assert plain.count(f"Use {QUOTES}.") == plain.count("Next: serve it.") == 1
    scores = text.partition('<section id="scores">')[2].partition("</section>")[0]
    names = re.findall(r'<th scope="row(?:group)?"[^>]*><bdi>(.*?)</bdi>', scores)
    assert list(map(html.unescape, names)) == [
        QUOTES, "as it is", "trained", "own", "mean", "trained", "trained + BM25", "BM25",
    ]  # fmt: skip
    assert "start kept" in scores and scores.count('class="best"') == 1
    # The best one wins questions 0 and 2 to 11, of which ten are shown, and loses 1 and 12 to 23.
    assert "11 won and 13 lost" in text
    assert text.count("▲ won") == text.count("▼ lost") == 10
    assert "<details open" not in text and re.findall(r"<th(?! scope=)", text) == ["<th"] * text.count("<thead")


def test_markup_is_text(page):
    text = page.read_text()
    assert "<script" not in text and "<img" not in text and "<b>" not in text
    assert html.escape(SCRIPT, quote=False) in text.replace("&#39;", "'")
    assert f"questions written by <bdi>{html.escape(SCRIPT)}" in text.replace("&#34;", "&quot;").replace(
        "&#39;", "&#x27;"
    )
    assert "http:" not in text and "https:" not in text and "src=" not in html.unescape(text).replace("img src=x", "")


def test_a_phone_shows_all_without_scrolling(show, page):
    for scheme in ("light", "dark"):
        shown = show(page, viewport={"width": 390, "height": 844}, color_scheme=scheme)
        assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
        shown.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
        assert shown.page.locator(".plot .name").evaluate_all(LAPS) == []
        assert shown.page.locator("main :is(script, img, b)").count() == 0
        assert shown.page.title() == "What to use" and shown.problems == []


def test_what_the_best_is_compared_with():
    first, kept, start, trained, bm25, fusion = rows()
    assert other_of([first, kept, fusion, start, trained, bm25], trained) is start, "its own start, as it is"
    assert other_of([first, kept, start, trained, fusion, bm25], first) is trained, "the best of another start"
    assert other_of([first, kept, bm25], first) in (kept, bm25)
