"""The page at `/` in Chromium: what it shows, what it asks the server for, and what it keeps to itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx2
import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from embrew.encoder import Encoder
from embrew.model.backbone import Backbone
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.serving.service import Service
from embrew.serving.settings import Settings
from embrew.settings.base import Base
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.conftest import tiny_model
from tests.serving.running import running, serving

sync_api = pytest.importorskip("playwright.sync_api", reason="install playwright to test the page")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"install Chromium as {CHROMIUM} to test the page")

HOSTILE = "<img src=x onerror=\"document.title='run'\"></td><script>document.title='run'</script>"
QUERIES = ["where is the sea?", HOSTILE, "🦊 ünï → 狐"]
DOCUMENTS = ["She sells sea shells.", "A fox jumps.", "  two  spaces ", "1234", "<b>bold</b> &amp; 🦊"]
KEY = "sk-page-5c1f"


class Shown:
    """The page, all that it requests, and all that it reports in the console."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.requests: list[Any] = []
        self.problems: list[str] = []
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text) if line.type != "log" else None)
        page.goto(address)

    def compare(self, queries: list[str] = QUERIES, documents: list[str] = DOCUMENTS) -> None:
        """Fill in texts, and wait for the result."""
        self.page.fill("#query", "\n".join(queries))
        self.page.fill("#document", "\n".join(documents))
        self.finish(lambda: self.page.click("#compare"))

    def choose(self, field: str, label: str) -> None:
        """Choose an option, and wait for the comparison that follows."""
        self.finish(lambda: self.page.select_option(f"#{field}", label=label))

    def press(self, field: str, key: str) -> None:
        """Press a key in a field, and wait for the comparison that follows."""
        self.finish(lambda: self.page.press(f"#{field}", key))

    def finish(self, act: Callable[[], object]) -> None:
        """Act, and wait for the end of the comparison that follows."""
        self.requests.clear()
        self.page.evaluate("document.getElementById('status').textContent = ''")
        act()
        self.page.locator("#status", has_text="Compared").wait_for()  # quicker than `expect`, which polls

    def bodies(self) -> list[dict[str, Any]]:
        """Return the latest requests for embeddings, without the texts and the encoding."""
        found = [json.loads(request.post_data) for request in self.requests if request.method == "POST"]
        hidden = ("input", "encoding_format")
        return [{name: value for name, value in body.items() if name not in hidden} for body in found]

    def similarities(self) -> np.ndarray:
        """Return the numbers of the heat map."""
        script = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => parseFloat(cell.textContent)))"
        return np.array(self.page.locator("#heat tbody tr").evaluate_all(script))

    def headings(self, scope: str) -> list[str]:
        """Return the texts at the top (`col`) or at the side (`row`) of the heat map."""
        found = self.page.locator(f"#heat th[scope={scope}]").evaluate_all("all => all.map(one => one.textContent)")
        return found[1:] if scope == "col" else found

    def figures(self, table: str) -> dict[str, list[str]]:
        """Return the rows of a table, by their first cell."""
        script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        return {name: cells for name, *cells in self.page.locator(f"#{table} tr").evaluate_all(script)}


@pytest.fixture(scope="module")
def encoder(tokenizer) -> Encoder:
    """An encoder with prompts, a context of vectors, and different limits of queries and documents."""
    made = Encoder(
        Backbone(tiny_model("llama")),
        tokenizer,
        Base("folder", "tiny"),
        template="{instruction}{text}{eos}",
        attention="causal",
        prompts={"query": "find: ", "document": "", "sts": "same: "},
        max_length={"query": 16, "document": 48},
        demonstrations=Demonstrations(),
    ).eval()
    initialize_demonstrator(made)
    made.add_context("sea", Context("Find it: ", (Demonstration("sea?", "She sells sea shells."),)))
    return made


@contextmanager
def served(encoder: Encoder, **settings: Any) -> Iterator[str]:
    """Serve an encoder that is open already; yields the address of the page."""
    with mock.patch("embrew.serving.service.open_model", return_value=encoder), serving("tiny", **settings) as address:
        yield f"{address}/"


@pytest.fixture(scope="module")
def address(encoder) -> Iterator[str]:
    """The page of a server of the encoder."""
    with served(encoder) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    sync_api.expect.set_options(timeout=60_000)
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser, address) -> Iterator[Callable[..., Shown]]:
    """Opens the page, in a browser context of its own."""
    contexts = []

    def open_page(at: str = address, **options: Any) -> Shown:
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(60_000)
        return Shown(contexts[-1].new_page(), at)

    yield open_page
    for context in contexts:
        context.close()


def cosines(encoder: Encoder, *, query: dict[str, Any] | None = None, **options: Any) -> np.ndarray:
    """Return the similarities of the texts above."""
    queries = encoder.encode_query(QUERIES, **(query or {}), **options)
    return encoder.similarity(queries, encoder.encode_document(DOCUMENTS, **options)).numpy()


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether they are equal in the three decimals that are shown."""
    return found.shape == expected.shape and bool(np.abs(found - expected).max() < 0.0006)


def test_similarities_are_the_encoders(show, encoder, address):
    shown = show()
    shown.compare()
    whole = cosines(encoder)
    assert near(shown.similarities(), whole)
    assert shown.bodies() == [{"input_type": "query"}, {"input_type": "document"}]
    best = shown.page.locator("#heat td.best").evaluate_all("cells => cells.map(cell => cell.cellIndex - 1)")
    assert best == whole.argmax(1).tolist()
    assert shown.headings("row") == QUERIES and shown.headings("col") == DOCUMENTS
    assert shown.page.title() == "embrew serve" and shown.page.locator("main img, main script, main b").count() == 0
    figures = shown.figures("figures")
    assert figures["One vector"] == ["128 B"] and figures["All documents"] == ["640 B"]
    assert shown.page.locator("#agreement-part").is_hidden()

    shown.press("layers-slider", "ArrowLeft")
    assert shown.bodies()[:2] == [{"input_type": side, "num_layers": 1} for side in ("query", "document")]
    first = cosines(encoder, num_layers=1)
    assert near(shown.similarities(), first) and not near(first, whole)
    agreement = shown.figures("agreement")
    assert float(agreement["Spearman correlation of the similarities"][0]) == pytest.approx(
        spearmanr(first.ravel(), whole.ravel()).statistic, abs=0.0006
    )
    changes = np.abs(rankdata(first, axis=1) - rankdata(whole, axis=1)).max()
    assert agreement["Largest change of a document's rank"] == [f"{changes:.0f}"]
    same = (first.argmax(1) == whole.argmax(1)).sum()
    assert agreement["Queries with the same best document"] == [f"{same} of 3"]

    shown.press("dimensions-slider", "Home")
    sides = [{"input_type": side, "num_layers": 1, "dimensions": 8} for side in ("query", "document")]
    assert shown.bodies() == sides  # the full setting was measured before, of the same texts
    assert near(shown.similarities(), cosines(encoder, num_layers=1, truncate_dim=8))
    assert shown.figures("figures")["One vector"] == ["32 B", "128 B", "× 0.25"]

    shown.page.fill("#dimensions", "12")
    shown.choose("precision", "binary, 1 bit per dimension")
    parts = [
        method(texts, num_layers=1)[:, :12] > 0
        for method, texts in ((encoder.encode_query, QUERIES), (encoder.encode_document, DOCUMENTS))
    ]
    differ = (parts[0][:, None] != parts[1][None]).mean(-1)
    assert near(shown.similarities(), 1 - 2 * differ)
    assert shown.figures("figures")["One vector"][0] == "2 B"
    assert {request.url.split("/")[2] for request in shown.requests} == {address.split("/")[2]} and not shown.problems


def test_key_is_asked_for_and_kept_in_memory_only(show, encoder):
    with served(encoder, keys=(KEY,)) as address:
        shown = show(address)
        page, expect = shown.page, sync_api.expect
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type("sk-wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text(re.compile(r"API key.*\(401\)"))
        expect(page.get_by_label("API key")).to_have_value("")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Use key").click()
        expect(page.get_by_label("API key")).to_be_hidden()
        expect(page.get_by_role("alert")).to_be_hidden()
        shown.compare()
        assert {request.headers.get("authorization") for request in shown.requests} == {f"Bearer {KEY}"}
        assert KEY not in page.content() and page.locator("#key").input_value() == ""
        kept = page.evaluate("[location.href, document.cookie, {...localStorage}, {...sessionStorage}]")
        assert kept == [address, "", {}, {}]
        page.reload()
        expect(page.get_by_label("API key")).to_be_visible()


def test_errors_are_shown_and_what_may_be_retried_is(show):
    shown = show()
    page, expect = shown.page, sync_api.expect
    alert = page.get_by_role("alert")
    page.fill("#query", " \n\n")
    page.click("#compare")
    expect(alert).to_have_text("Give at least one query and one document.")
    answers = [(429, {"Retry-After": "20"}, "too many <b>requests</b>"), (503, {"Retry-After": "7"}, "loading")]

    def refuse(route: Any) -> None:
        if not answers:
            route.continue_()
            return
        status, headers, message = answers.pop(0)
        route.fulfill(status=status, headers=headers, json={"error": {"message": message}})

    page.route("**/v1/embeddings", refuse)
    page.clock.install()
    page.fill("#query", "one")
    page.press("#query", "Control+Enter")
    expect(page.get_by_role("status")).to_have_text("too many <b>requests</b> (429); next attempt in 20 s")
    page.clock.run_for(19_000)
    expect(page.get_by_role("status")).to_contain_text("429")
    page.clock.run_for(1_001)
    expect(page.get_by_role("status")).to_have_text("loading (503); next attempt in 7 s")
    page.clock.run_for(7_001)
    expect(page.get_by_role("status")).to_have_text("Compared: 1 query, 5 documents")
    assert shown.similarities().shape == (1, 5)
    answers.append((422, {}, "text 0 has invalid Unicode"))
    page.click("#compare")
    expect(alert).to_have_text("text 0 has invalid Unicode (422)")
    answers.append((413, {}, "x"))
    page.unroute("**/v1/embeddings")
    page.route("**/v1/embeddings", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    page.click("#compare")
    expect(alert).to_contain_text("The server answered 502")


def test_encoders_of_one_language_model_are_chosen_from(show, resident_base, tenants):
    """By name, each with its own prompts; the name of what chats is none of them."""
    folders = {name: tenants[name] for name in ("contrast", "tasks")}
    given = [f"{name}={folder}" for name, folder in folders.items()]
    service = Service(Settings(str(resident_base), encoder=given, chat=True))
    service.load()
    with running(service) as address:
        shown = show(address)
        shown.compare()
        assert shown.page.locator("#encoder option").all_text_contents() == list(folders)
        assert near(shown.similarities(), cosines(Encoder.from_pretrained(folders["contrast"])))
        shown.choose("encoder", "tasks")
        assert {body["model"] for body in shown.bodies()} == {"tasks"}
        assert near(shown.similarities(), cosines(Encoder.from_pretrained(folders["tasks"])))
        assert "context sea" in shown.page.locator("#query-prompt").inner_text()
        assert not shown.problems


def test_policy_lets_nothing_else_run(show, address):
    answer = httpx2.get(address)
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'" and "unsafe" not in str(policy)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    shown = show()
    sync_api.expect(shown.page.locator("#model")).to_contain_text("2 layers")
    tried = shown.page.evaluate(
        """async () => {
          const script = document.createElement("script");
          try { script.textContent = "document.title = 'run'"; document.body.append(script); } catch { }
          try { document.body.innerHTML = "<p>run</p>"; } catch { }
          const other = await fetch("http://localhost:9/").then(() => "reached", () => "refused");
          return [document.title, document.querySelector("#model") !== null, other];
        }"""
    )
    assert tried == ["embrew serve", True, "refused"]
    assert not [request for request in shown.requests if "localhost:9" in request.url]
    assert any("Content Security Policy" in problem for problem in shown.problems)
