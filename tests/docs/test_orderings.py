"""The report of the papers' orderings: read from results and plans, explained, and complete."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    "verdicts",
    "result_cells",
    "result_plans",
    "result_scores",
    "result_orderings",
    "result_report",
    "result_tables",
)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, imported anew."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("result_tables")


def test_the_report_has_all_orderings(tables: ModuleType) -> None:
    report = tables.Report(tables.read_orderings(tables.ORDERINGS))
    assert [one.number for one in report.orderings] == list(range(1, 25))
    assert report.problems() == []
    page = (ROOT / "benchmarks" / "evidence.md").read_text(encoding="utf-8")
    assert re.findall(r"^### Ordering (\d+)$", page, re.MULTILINE) == [str(number) for number in range(1, 25)]
    assert len(re.findall(r"^\| \[\d+\]\(#ordering-\d+\) \|", page, re.MULTILINE)) == 24
    pattern = r"^\| (nano|small world)(?: \([^)]*\))? \| (\d+)[^|]*\| (\d+) \| (\d+) \| (\d+) \|$"
    rows = re.findall(pattern, page, re.MULTILINE)
    assert [(name, sum(map(int, counts))) for name, *counts in rows] == [("nano", 24), ("small world", 24)]


def test_pages_that_the_report_names_exist() -> None:
    page = ROOT / "benchmarks" / "evidence.md"
    text = page.read_text(encoding="utf-8")
    targets = {target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target}
    assert len(targets) >= 7
    assert not [target for target in targets if not (page.parent / target).exists()]
    plans = re.search(r"for plan in (.*); do", text)
    assert plans is not None
    named = [*plans[1].split(), *re.findall(r"plans/([\w-]+)\.yaml", text)]
    assert not [name for name in named if not (ROOT / "benchmarks" / "plans" / f"{name}.yaml").exists()]


def test_rows_that_are_compared_later_are_planned(tables: ModuleType) -> None:
    """A file that stands in until then hides the rows of a plan, which are read only when it has a result."""
    given = sys.modules["result_orderings"].parse_yaml(tables.ORDERINGS.read_text(encoding="utf-8"), source="orderings")
    later = [entry["nano"] for entry in given["orderings"].values() if "until" in entry["nano"]]
    assert len(later) >= 5
    for place in later:
        rows = set()
        for entry in place["compare"]:
            than = entry.get("than", [])
            rows |= {*entry.get("chain", [entry.get("better")]), *(than if isinstance(than, list) else [than])}
        others = {entry["than"] for entry in place["compare"] if "than_file" in entry}
        assert rows - others <= sys.modules["result_plans"].planned(place["file"]), place["file"]


ORDERINGS: dict[str, Any] = {
    "names": {"ours: last": "ours", "sts": "STS"},
    "orderings": {
        "1": {
            "method": "Mine",
            "claim": "ours before theirs, and before what is not trained",
            "paper": "3 > 2 > 1",
            "setting": "a model",
            "nano": {
                "file": "scores",
                "task": "sts",
                "compare": [{"chain": ["ours: last", "theirs"]}, {"better": "ours: last", "than": "bare"}],
                "why": {"reproduced": "It helps, by <!-- value: t :: ours :: STS --><!-- /value -->."},
            },
            "world": {"file": "scores", "task": "sts", "compare": [{"better": "ours: last", "than": ["later"]}]},
        },
        "2": {
            "method": "Mine",
            "claim": "faster",
            "paper": "1.19",
            "nano": {
                "compare": [{"ratio": "time", "file": "step", "at": ["measures", 0]}],
                "why": {"refuted": "Slow."},
            },
            "world": {"cannot": "No clock."},
        },
    },
}
PLAN = """
rows:
  - {row: "bare", recipe: mine, stages: []}
  - {row: "ours", recipe: mine, judge: [last], seeds: [1, 2, 3]}
  - {row: "later", recipe: mine}
"""
SCORES: dict[str, Any] = {
    "date": "2026-11-21",
    "rows": {
        "ours: last": {"sts": [0.53, 0.54, 0.55]},
        "theirs": {"sts": [0.50, 0.505, 0.51]},
        "bare": {"sts": [0.10]},
    },
    "seeds": {"ours: last": [1, 2, 3], "theirs": [1, 2, 3], "bare": [42]},
}
DEFINITION = """
t:
  file: scores
  at: rows
  first: method
  scale: 100
  columns: {STS: sts}
  rows: {ours: "ours: last"}
"""
PAGE = """<!-- orderings: counts -->
<!-- /orderings -->

<!-- orderings: summary -->
<!-- /orderings -->

<!-- orderings: details -->
<!-- /orderings -->

<!-- table: t -->
<!-- /table -->
"""


@pytest.fixture
def documents(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report with its definitions, results and plan."""
    for folder in ("benchmarks/results", "benchmarks/plans", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "benchmarks" / "evidence.md").write_text(PAGE)
    (tmp_path / "benchmarks" / "plans" / "scores.yaml").write_text(PLAN)
    (tmp_path / "docs" / "tables.yaml").write_text(DEFINITION)
    (tmp_path / "docs" / "orderings.yaml").write_text(json.dumps(ORDERINGS))
    write(tmp_path, SCORES)
    step = {"measures": [{"ratio": 0.8, "low": 0.7, "high": 0.9}]}
    (tmp_path / "benchmarks" / "results" / "step.json").write_text(json.dumps(step))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "DEFINITIONS", tmp_path / "docs" / "tables.yaml")
    monkeypatch.setattr(tables, "ORDERINGS", tmp_path / "docs" / "orderings.yaml")
    monkeypatch.setattr(sys.modules["result_cells"], "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(sys.modules["result_plans"], "PLANS", tmp_path / "benchmarks" / "plans")
    return tmp_path


def write(folder: Path, scores: dict[str, Any]) -> None:
    """Write a result file, which is then read again."""
    (folder / "benchmarks" / "results" / "scores.json").write_text(json.dumps(scores))
    sys.modules["result_cells"].result.cache_clear()


def page_of(folder: Path) -> str:
    """The report."""
    return (folder / "benchmarks" / "evidence.md").read_text(encoding="utf-8")


def changed(**rows: list[float]) -> dict[str, Any]:
    """The result file with other scores; `ours` stands for `ours: last`."""
    found = json.loads(json.dumps(SCORES))
    for row, values in rows.items():
        label = {"ours": "ours: last"}.get(row, row)
        found["rows"][label] = {"sts": values}
        found["seeds"][label] = list(range(1, len(values) + 1))
    return dict(found)


def test_the_report_is_written(tables: ModuleType, documents: Path) -> None:
    assert tables.main(check=True) == 1
    assert page_of(documents) == PAGE
    assert tables.main(check=False) == 0
    page = page_of(documents)
    assert "| nano | 1 | 1 | 0 | 0 |\n| small world | 0 | 0 | 1 | 1 |" in page
    assert "| [1](#ordering-1) | Mine: ours before theirs, and before what is not trained | 3 > 2 > 1 | " in page
    assert "| **reproduced** (2 for) | **not measured** |\n" in page
    # 54 ± 1 and 50.5 ± 0.5; differences 3, 3.5 and 4, so 3.5 ± 4.3027·0.5/√3 = 1.24
    row = (
        "| nano | ours > theirs, STS | 54.0 ± 1.0 (3 seeds) | 50.5 ± 0.5 (3 seeds) | +3.5 (+2.3 to +4.7), 3 of 3 seeds "
    )
    assert row + "above 0 | for |" in page
    assert "| nano | ours > bare, STS | 54.0 ± 1.0 (3 seeds) | 10.0 (not trained) | +44.0 (" in page
    assert "| small world | ours > later, STS | 54.0 ± 1.0 (3 seeds) | – | – | not measured |" in page
    assert (
        "- nano: **reproduced** (2 for). It helps, by <!-- value: t :: ours :: STS -->54.0 ± 1.0<!-- /value -->."
        in page
    )
    assert "| nano | time: above 1 |  |  | × 0.80 (0.70 to 0.90) | **against** |" in page
    assert "- small world: **not resolvable here**. No clock." in page
    assert tables.main(check=True) == 0


def test_a_new_result_that_changes_a_verdict_fails_until_it_is_explained(
    tables: ModuleType, documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.main(check=False)
    write(documents, changed(theirs=[0.60, 0.60, 0.60]))
    assert tables.main(check=True) == 1
    assert tables.main(check=False) == 1  # written, with the verdict of now and no sentence of another
    said = capsys.readouterr().out
    assert "ordering 1, nano: the results now say refuted; docs/orderings.yaml explains reproduced" in said
    assert "- nano: **refuted** (1 for, 1 against)." in page_of(documents)
    assert "It helps" not in page_of(documents)
    assert tables.main(check=True) == 1
    explained = json.loads(json.dumps(ORDERINGS))
    explained["orderings"]["1"]["nano"]["why"]["refuted"] = "It does not help."
    (documents / "docs" / "orderings.yaml").write_text(json.dumps(explained))
    assert tables.main(check=False) == 0
    assert "- nano: **refuted** (1 for, 1 against). It does not help." in page_of(documents)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"theirs": [0.60, 0.50, 0.60]}, "(1 for, 1 open). Left open: the seeds disagree (1 of 2)."),
        ({"theirs": [0.50]}, "(1 for, 1 open). Left open: one seed (1 of 2)."),
        ({"ours": [0.54]}, "(2 open). Left open: one seed (2 of 2)."),
    ],
)
def test_what_is_open_is_said_without_a_sentence(
    tables: ModuleType, documents: Path, rows: dict[str, list[float]], said: str
) -> None:
    write(documents, changed(**rows))
    assert tables.main(check=False) == 0
    assert f"- nano: **not resolvable here** {said}" in page_of(documents)


def test_a_planned_row_fills_in_by_itself(tables: ModuleType, documents: Path) -> None:
    assert tables.main(check=False) == 0
    write(documents, changed(later=[0.54, 0.53, 0.56]))  # differences -1, 1 and -1
    assert tables.main(check=True) == 1
    assert tables.main(check=False) == 0
    assert "- small world: **not resolvable here**. Left open: the seeds disagree." in page_of(documents)


def test_another_file_stands_in_until_there_is_a_result(tables: ModuleType, documents: Path) -> None:
    given = json.loads(json.dumps(ORDERINGS))
    given["orderings"]["1"]["nano"] |= {"file": "longer", "until": {"file": "scores"}}
    (documents / "docs" / "orderings.yaml").write_text(json.dumps(given))
    assert tables.main(check=False) == 0
    assert "Source: `benchmarks/results/scores.json` (2026-11-21)." in page_of(documents)
    longer = {**changed(theirs=[0.60, 0.55, 0.50]), "date": "2026-11-23"}
    (documents / "benchmarks" / "results" / "longer.json").write_text(json.dumps(longer))
    (documents / "benchmarks" / "plans" / "longer.yaml").write_text(PLAN)
    assert tables.main(check=False) == 0
    assert "`benchmarks/results/longer.json` (2026-11-23)" in page_of(documents)
    assert "Left open: the seeds disagree (1 of 2)." in page_of(documents)


def test_a_part_of_a_claim_is_said(tables: ModuleType, documents: Path) -> None:
    given = json.loads(json.dumps(ORDERINGS))
    given["orderings"]["1"]["nano"]["part"] = "the first half."
    (documents / "docs" / "orderings.yaml").write_text(json.dumps(given))
    assert tables.main(check=False) == 0
    assert "| **reproduced**, in part (2 for) |" in page_of(documents)
    assert "Only part of the claim is compared: the first half." in page_of(documents)
    assert "| nano | 1, of which 1 in part | 1 | 0 | 0 |" in page_of(documents)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ({}, {"suite": "another"}, "another suite: None, another"),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, "another dtype: float32, bfloat16"),
    ],
)
def test_rows_of_two_suites_or_dtypes_are_not_compared(
    tables: ModuleType, documents: Path, ours: dict[str, str], theirs: dict[str, str], message: str
) -> None:
    given = json.loads(json.dumps(ORDERINGS))
    given["orderings"]["1"]["nano"]["than_file"] = "others"
    (documents / "docs" / "orderings.yaml").write_text(json.dumps(given))
    results = documents / "benchmarks" / "results"
    first = given["orderings"]["1"]["nano"]["file"]
    (results / f"{first}.json").write_text(json.dumps({**SCORES, **ours}))
    (results / "others.json").write_text(json.dumps({**SCORES, **theirs}))
    with pytest.raises(ValueError, match=message):
        tables.main(check=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"method"', '"methods"', "ordering 1: unknown keys ['methods']"),
        ('"paper": "1.19", ', "", "ordering 2 has no paper"),
        ('"chain"', '"chains"', "unknown keys ['chains']"),
        ('"why": {"refuted"', '"why": {"wrong"', "nano, why: unknown keys ['wrong']"),
        ('"names"', '"name"', "the file: unknown keys ['name']"),
        ('"task": "sts"', '"tasks": ["sts"]', "nano: unknown keys ['tasks']"),
        ('"sts", "compare"', '"stsb", "compare"', "scores, ours: last: nothing at 'stsb'"),
        ('"ours: last", "theirs"', '"ours: last", "them"', "scores has no row 'them', nor has its plan"),
        ('"than": ["later"]', '"than": []', "name `better` and `than`"),
        ('"than": ["later"]', '"relation": "above", "than": "later"', "no relation 'above'; known are >"),
        ('"file": "scores", "task"', '"file": "score", "task"', "score: neither results nor a plan with the row"),
        ("It helps, by ", "It helps by 3.5, or ", "a figure in"),
        ('{"cannot": "No clock."}', '{"cannot": "No clock.", "compare": [{"ratio": "r"}]}', "`cannot` stands alone"),
        ('{"cannot": "No clock."}', "{}", "write `compare`, or `why` with the key 'not measured', or `cannot`"),
        ('{"chain": ["ours: last", "theirs"]}', '{"chain": ["ours: last"]}', "name `better` and `than`"),
        ('"reproduced": "It helps, by <!-- value: t ::', '"reproduced": "By <!-- value: u ::', "no table u in docs"),
    ],
)
def test_a_wrong_definition_is_refused(tables: ModuleType, documents: Path, old: str, new: str, message: str) -> None:
    text = json.dumps(ORDERINGS)
    assert old in text
    (documents / "docs" / "orderings.yaml").write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message)):
        tables.main(check=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- orderings: Yours -->\n<!-- /orderings -->", "no orderings 'Yours'; there are counts, summary"),
        ("<!-- orderings: counts -->", "without a counterpart"),
    ],
)
def test_a_wrong_page_is_refused(tables: ModuleType, documents: Path, text: str, message: str) -> None:
    (documents / "README.md").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        tables.main(check=True)


def test_the_orderings_of_one_method(tables: ModuleType, documents: Path) -> None:
    (documents / "README.md").write_text("<!-- orderings: Mine -->\n<!-- /orderings -->\n")
    (documents / "docs" / "page.md").write_text("<!-- orderings: Mine -->\n<!-- /orderings -->\n")
    assert tables.main(check=False) == 0
    readme, page = ((documents / name).read_text() for name in ("README.md", "docs/page.md"))
    assert "| [2](benchmarks/evidence.md#ordering-2) | faster | 1.19 | **refuted** |" in readme
    assert "| 2 | faster | 1.19 | **refuted** |" in page
