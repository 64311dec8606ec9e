"""Tables and figures in the documentation are those of `benchmarks/results`."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("result_cells", "result_plans", "result_scores", "result_orderings", "result_report", "result_tables")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, imported anew."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("result_tables")


def test_every_page_has_the_figures_of_the_results(tables: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(check=True) == 0, f"run `make tables`: {capsys.readouterr().out}"
    assert sum("<!-- table: " in page.read_text(encoding="utf-8") for page in tables.pages()) >= 2


DEFINITION = """
scores:
  file: scores
  at: rows
  first: method
  scale: 100
  columns:
    STS: {path: sts, best: max}
    seeds: {path: sts, show: count}
    retrieval: retrieval
    paper: null
  rows:
    "*a heading*": ""
    ours: {path: "ours, stage: 1", cells: {paper: "52.50"}}
    before: before
    later: null
time:
  first: step
  columns:
    ratio: {path: ratio, range: [low, high], format: .2f}
    milliseconds: {path: ours, format: ",.0f"}
  rows:
    fast: {file: step, path: [measures, {what: step time}]}
    second: {file: step, path: [measures, 1]}
    lists: {file: step, path: runs, cells: {ratio: none}}
"""
SCORES = {
    "date": "2026-11-21 06:10 UTC",
    "rows": {
        "ours, stage: 1": {"sts": [0.30, 0.50], "retrieval": [0.071]},
        "before": {"sts": [0.2], "retrieval": None},
    },
}
STEP = {
    "measures": [
        {"what": "step time", "ratio": 1.625, "low": 1.5, "high": 1.75, "ours": 1111.6},
        {"what": "memory", "ratio": 2, "low": None, "high": None, "ours": 3.0},
    ],
    "runs": [{"ours": 1.0}, {"ours": 3.0}],
}
PAGE = """Text.

<!-- table: scores -->
<!-- /table -->

It is <!-- value: time :: fast :: ratio --><!-- /value -->.
"""
# By hand: the mean of 30 and 50 is 40; deviations of ±10 give sqrt(200 / 1) = 14.14.
EXPECTED = """Text.

<!-- table: scores -->

| method | STS | seeds | retrieval | paper |
|---|---:|---:|---:|---:|
| *a heading* |  |  |  |  |
| ours | **40.0** ± 14.1 | 2 | 7.1 | 52.50 |
| before | 20.0 | 1 | not measured | – |
| later | not measured | 0 | not measured | – |

Source: `benchmarks/results/scores.json`, 2026-11-21. Mean ± standard deviation over seeds.

<!-- /table -->

It is <!-- value: time :: fast :: ratio -->1.62 (1.50 to 1.75)<!-- /value -->.
"""


@pytest.fixture
def documents(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A README with a table and a value, definitions and results."""
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tables.yaml").write_text(DEFINITION)
    (tmp_path / "README.md").write_text(PAGE)
    for name, content in (("scores", SCORES), ("step", STEP)):
        (tmp_path / "benchmarks" / "results" / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules["result_cells"], "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(tables, "DEFINITIONS", tmp_path / "docs" / "tables.yaml")
    monkeypatch.setattr(tables, "ORDERINGS", tmp_path / "docs" / "orderings.yaml")  # none
    return tmp_path


def test_no_line_begins_with_a_figure(tables: ModuleType) -> None:
    """Markdown takes a line that begins with a comment as HTML, and ends the paragraph or the list before it."""
    for page in tables.pages():
        assert not re.findall(r"^\s*<!-- value: .*", page.read_text(encoding="utf-8"), re.MULTILINE), page


def test_a_page_is_written_once_and_then_stays(tables: ModuleType, documents: Path) -> None:
    assert tables.main(check=True) == 1
    assert (documents / "README.md").read_text() == PAGE
    assert tables.main(check=False) == 0
    assert (documents / "README.md").read_text() == EXPECTED
    assert tables.main(check=True) == 0


def test_an_old_number_is_found(tables: ModuleType, documents: Path) -> None:
    (documents / "README.md").write_text(EXPECTED.replace("7.1", "7.2"))
    assert tables.main(check=True) == 1
    (documents / "README.md").write_text(EXPECTED.replace("1.62", "1.63"))
    assert tables.main(check=True) == 1


def test_cells_of_measures_and_lists(tables: ModuleType, documents: Path) -> None:
    cells = tables.definitions(DEFINITION)["time"].cells()
    assert cells["fast"] == {"ratio": "1.62 (1.50 to 1.75)", "milliseconds": "1,112"}
    assert cells["second"] == {"ratio": "2.00", "milliseconds": "3"}
    assert cells["lists"] == {"ratio": "none", "milliseconds": "2 ± 1"}  # sqrt(2) = 1.41


def test_numbers_within_a_text(tables: ModuleType) -> None:
    said = {"notes": {"int8": "1.5 s, 2.25 × ours, mean cosine 0.9987, smallest 0.5"}}
    assert tables.find(said, ["notes", "int8", {"before": " × ours"}]) == "2.25"
    assert tables.find(said, ["notes", "int8", {"after": "mean cosine "}]) == "0.9987"
    for part in ({"after": "Spearman "}, {"before": ""}):  # none, and four
        with pytest.raises(KeyError, match="times"):
            tables.find(said, ["notes", "int8", part])


BY_STAGE = """
stages:
  at: rows
  first: method
  columns:
    first: {file: scores, path: ["{row}, stage: 1", [sts, ndcg]]}
    milliseconds: {file: "{row}-step", at: measures, path: [0, ours]}
    gain: {file: scores, path: ["{row}, stage: 1", sts], minus: ["{row}, stage: 1", ndcg], format: +.2f}
  rows: [ours]
"""


def test_the_name_of_a_row_within_keys_and_files(tables: ModuleType, documents: Path) -> None:
    results = documents / "benchmarks" / "results"
    # By hand, for each seed: (0.3 + 0.1) / 2 = 0.2 and (0.5 + 0.3) / 2 = 0.4, whose mean is 0.3, deviations ±0.1.
    (results / "scores.json").write_text('{"rows": {"ours, stage: 1": {"sts": [0.3, 0.5], "ndcg": [0.1, 0.3]}}}')
    (results / "ours-step.json").write_text(json.dumps(STEP))
    cells = tables.definitions(BY_STAGE)["stages"].cells()["ours"]
    assert cells == {"first": "0.3 ± 0.1", "milliseconds": "1111.6", "gain": "+0.20 ± 0.00"}


PLAN = """
rows:
  - row: later
    recipe: mine
    judge: [align]
    tokens: [all, concat]
    shots: [0, 5]
    demonstrations: [right, foreign]
    asked: [plain]
  - {row: "ours", stages: [first, last]}
"""
PLANNED = """
new:
  file: scores
  at: rows
  first: method
  columns: {STS: sts, by seed: {path: sts, show: each}, seeds: {path: sts, show: count}}
  rows: {ours: "ours, stage: 1", later: "later: align, 5 shots, plain"}
"""


def test_a_planned_row_is_not_measured_and_another_is_an_error(
    tables: ModuleType, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = documents / "plans"
    plans.mkdir()
    (plans / "scores.yaml").write_text(PLAN)
    monkeypatch.setattr(sys.modules["result_plans"], "PLANS", plans)
    cells = tables.definitions(PLANNED)["new"].cells()
    assert cells["ours"] == {"STS": "0.4 ± 0.1", "by seed": "0.3, 0.5", "seeds": "2"}
    assert cells["later"] == {"STS": "not measured", "by seed": "not measured", "seeds": "0"}
    named = "later: align, 5 shots, plain"
    for other in (
        "later: align, concat, 5 shots, plain",
        "later: align, 5 shots, foreign, plain",
        "later, 0 shots, plain",
    ):
        renamed = tables.definitions(PLANNED.replace(named, other))["new"]
        assert renamed.cells()["later"]["STS"] == "not measured"
    never = ("later: aligned, 5 shots, plain", "later: align, 6 shots, plain", "later: align, 0 shots, foreign, plain")
    for wrong in (*never, "later: align", "later: align, 5 shots", "latest"):
        with pytest.raises(ValueError, match="has no"):
            tables.definitions(PLANNED.replace(named, wrong))["new"].cells()
    (documents / "benchmarks" / "results" / "scores.json").unlink()
    sys.modules["result_cells"].result.cache_clear()
    with pytest.raises(ValueError, match="ours, stage: 1"):  # the plan has no such row either
        tables.definitions(PLANNED)["new"].cells()
    table = tables.definitions(PLANNED.replace("ours, stage: 1", "ours: last"))["new"]
    assert {cell for row in table.cells().values() for cell in row.values()} == {"not measured", "0"}
    assert table.source() == ""


EACH = """
claims:
  file: scores
  at: claims
  first: said before
  columns: {verdict: {path: verdict, align: left}, off by: {path: differences, show: each}}
  each: claim
"""


def test_a_row_for_each_object_of_a_list(tables: ModuleType, documents: Path) -> None:
    claims = [
        {"claim": "it rises", "verdict": "holds", "differences": [1.0, 2.0]},
        {"claim": "it falls", "verdict": "reversed", "differences": [None, None]},
    ]
    path = documents / "benchmarks" / "results" / "scores.json"
    path.write_text(json.dumps({"claims": claims}))
    assert tables.definitions(EACH)["claims"].markdown().splitlines() == [
        "| said before | verdict | off by |",
        "|---|---|---:|",
        "| it rises | holds | 1.0, 2.0 |",
        "| it falls | reversed | – |",
        "",
        "Source: `benchmarks/results/scores.json`.",
    ]
    path.write_text(json.dumps({"claims": {"by name": {"verdict": "open", "differences": [0.5]}}}))
    sys.modules["result_cells"].result.cache_clear()
    assert tables.definitions(EACH)["claims"].cells() == {"by name": {"verdict": "open", "off by": "0.5"}}
    path.unlink()
    assert tables.definitions(EACH)["claims"].cells() == {
        "no results yet": {"verdict": "not measured", "off by": "not measured"}
    }
    with pytest.raises(ValueError, match=re.escape("unknown keys ['rows']")):
        tables.definitions(EACH + "  rows: [it]\n")


def test_a_list_of_words(tables: ModuleType) -> None:
    assert tables.Column().text(["one claim", "another"]) == "one claim; another"
    assert tables.Column().text([]) == "none"
    assert tables.Column().text({"one claim": 2, "another": 3}) == "one claim (2); another (3)"
    assert tables.Column().text({}) == "none"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<!-- value: time :: fast :: ratio --><!-- /value -->", "1.62", "no page holds: ['time']"),
        ("table: scores", "table: score", "no table score in docs/tables.yaml"),
        ("time :: fast", "time :: slow", "no cell slow :: ratio"),
        ("<!-- /value -->", "", "without a counterpart"),
        ("<!-- table: scores -->\n", "<!-- table: scores -->", "without a counterpart"),
    ],
)
def test_a_wrong_page_is_refused(tables: ModuleType, documents: Path, old: str, new: str, message: str) -> None:
    (documents / "README.md").write_text(PAGE.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message)):
        tables.main(check=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("before: before", "before: early", "table scores, before :: STS: scores.json has no ['early', 'sts']"),
        ("retrieval: retrieval", "retrieval: retrieve", "has no ['ours, stage: 1', 'retrieve']"),
        ("range: [low, high]", "range: [low, top]", "step.json has no"),
        ("{what: step time}", "{what: time}", "found 0 times"),
        ("[measures, 1]", "[measures, 2]", "step.json has no ['measures', 2, 'ratio']"),
        ("  file: scores\n", "  file: score\n", "score.json"),
        ("  file: scores\n", "", "name a `file`"),
        ("  at: rows\n", "  above: rows\n", "unknown keys ['above']"),
        ("cells: {paper:", "cells: {papers:", "no columns ['papers']"),
        ("    before: before\n", "    before: before\n    before: mean\n", "occurs twice"),
    ],
)
def test_a_wrong_definition_is_refused(tables: ModuleType, documents: Path, old: str, new: str, message: str) -> None:
    assert old in DEFINITION
    (documents / "docs" / "tables.yaml").write_text(DEFINITION.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message)):
        tables.main(check=True)
