"""Write tables and figures of `benchmarks/results` into the documentation.

    python scripts/result_tables.py [--check]

`docs/tables.yaml` defines tables; its head explains the keys. A page (README.md, docs/, benchmarks/*.md) holds
`<!-- table: NAME -->` and `<!-- /table -->`, and what is between them is replaced. `docs/orderings.yaml` defines the
papers' orderings; `<!-- orderings: PART -->` and `<!-- /orderings -->` hold some of them with computed verdicts. With
`--check` nothing is written, and the exit status is 1 if a text differs. It is always 1 if no sentence explains a
verdict.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from result_cells import NO_TEXT, NOT_MEASURED, Column, Row, filled, find, has_result, page_of, path_of, result
from result_orderings import read_orderings
from result_report import HELD, Report

from embrew.settings.yaml_files import parse_yaml

ROOT = Path(__file__).parents[1]
DEFINITIONS = ROOT / "docs" / "tables.yaml"
ORDERINGS = ROOT / "docs" / "orderings.yaml"
TABLE = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- /table -->", re.DOTALL)
NUMBER = re.compile(r"^-?\d+(\.\d+)?")
MARKER = re.compile(r"<!-- /?(?:table|orderings)\b.*?-->")


def pages() -> list[Path]:
    """Return the files that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]


@dataclass(frozen=True)
class Table:
    """A table of `docs/tables.yaml`."""

    name: str
    first: str
    columns: Mapping[str, Column | None]
    rows: Mapping[str, Row]
    file: str | None
    at: Any

    def cells(self) -> dict[str, dict[str, str]]:
        """Return the text of all cells, by row and column."""
        texts = {label: {name: self.cell(label, name) for name in self.columns} for label in self.rows}
        for name, column in self.columns.items():
            if column is not None and column.best is not None:
                choose = {"max": max, "min": min}[column.best]
                numbers = {label: float(found[0]) for label in texts if (found := NUMBER.match(texts[label][name]))}
                for label, number in numbers.items():
                    if number == choose(numbers.values()):
                        texts[label][name] = NUMBER.sub(r"**\g<0>**", texts[label][name], count=1)
        return texts

    def cell(self, label: str, name: str) -> str:
        """Return the text of one cell."""
        row, column = self.rows[label], self.columns[name]
        if name in row.cells:
            return str(row.cells[name])
        if column is None:
            return row.otherwise if row.otherwise == "" else NO_TEXT
        if row.otherwise is not None:
            return "0" if row.otherwise and column.show == "count" else row.otherwise
        file = self.file_of(row, column)
        try:
            content = find(result(file), path_of(column.at or self.at))
            value, ends = column.value(content, row), column.ends(content, row)
        except (KeyError, TypeError, FileNotFoundError) as error:
            where = f"table {self.name}, {label} :: {name}"
            raise ValueError(f"{where}: {file}.json has no {column.path_in(row, column.path)} ({error})") from error
        between = " to ".join(column.text(end) for end in ends)
        return column.text(value) + (f" ({between})" if between else "")

    def left(self, name: str) -> bool:
        """Return whether a column holds words, which begin at its left."""
        column = self.columns[name]
        return column is not None and column.align == "left"

    def file_of(self, row: Row, column: Column) -> str:
        """Return the name of the result file that a cell is read from."""
        file = row.file or column.file or self.file
        if file is None:
            raise ValueError(f"table {self.name}: name a `file` for the table, its rows or its columns")
        return filled(file, row)

    def source(self) -> str:
        """Return the line below the table: files, dates, and what ± means; nothing if no row was measured."""
        by_date: dict[str, list[str]] = {}
        for row in self.rows.values():
            for column in self.columns.values():
                file = self.file_of(row, column) if row.otherwise is None and column is not None else None
                if file is not None and has_result(file):
                    files = by_date.setdefault((result(file).get("date") or "")[:10], [])
                    files += [] if page_of(file) in files else [page_of(file)]
        if not by_date:
            return ""
        said = "; ".join(", ".join([*files, *([date] if date else [])]) for date, files in by_date.items())
        several = any("±" in cell for row in self.cells().values() for cell in row.values())
        return f"Source: {said}." + (" Mean ± standard deviation over seeds." if several else "")

    def markdown(self) -> str:
        """Return the table and its source."""
        lines = [
            f"| {self.first} | " + " | ".join(self.columns) + " |",
            "|---|" + "".join("---|" if self.left(name) else "---:|" for name in self.columns),
            *(f"| {label} | " + " | ".join(cells.values()) + " |" for label, cells in self.cells().items()),
        ]
        return "\n".join([*lines, "", self.source()]).rstrip()


def labelled(given: Mapping[str, Any] | list[str]) -> Mapping[str, Any]:
    """Return labels with what they stand for; a list means labels that are keys themselves."""
    return given if isinstance(given, Mapping) else {label: label for label in given}


def listed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row for each object of a list, called by its key `each`, or each key of an object.

    Without a result file there is one row, which says so.
    """
    key, file = given["each"], given["file"]
    if not has_result(file):
        return {"no results yet": None}
    found = find(result(file), path_of(given.get("at")))
    if isinstance(found, Mapping):
        return labelled(list(found))
    return {str(one[key]): {"path": {key: one[key]}} for one in found}


def table_of(name: str, given: Mapping[str, Any]) -> Table:
    """Return the table that `docs/tables.yaml` describes."""
    common = {key: given[key] for key in ("scale", "format") if key in given}
    columns: dict[str, Column | None] = {}
    for label, spec in labelled(given["columns"]).items():
        own = spec if isinstance(spec, Mapping) else {"path": spec}
        columns[label] = None if spec is None else Column(**{**common, **own})
    rows: dict[str, Row] = {}
    for label, spec in (listed(given) if "each" in given else labelled(given["rows"])).items():
        row = Row(**spec) if isinstance(spec, Mapping) else Row(path=spec)
        if row.path in (None, "") and row.file is None:
            row = replace(row, otherwise="" if row.path == "" else NOT_MEASURED)
        rows[label] = row
        if unknown := set(row.cells) - set(columns):
            raise ValueError(f"table {name}, row {label}: no columns {sorted(unknown)}; columns are {list(columns)}")
    unknown = set(given) - {"first", "file", "at", "columns", "each" if "each" in given else "rows", *common}
    if unknown:
        raise ValueError(f"table {name}: unknown keys {sorted(unknown)}")
    return Table(name, given["first"], columns, rows, given.get("file"), given.get("at"))


def definitions(text: str) -> dict[str, Table]:
    """Return the tables of a definition file by name."""
    return {name: table_of(name, given) for name, given in parse_yaml(text, source=DEFINITIONS.name).items()}


def regenerated(text: str, tables: Mapping[str, Table], used: set[str]) -> str:
    """Return a page's text with its tables written anew; add the names of the tables to `used`.

    Raises:
        ValueError: a table is not defined, or a marker has no counterpart.
    """

    def table(marker: re.Match[str]) -> str:
        name = marker[1]
        if name not in tables:
            raise ValueError(f"no table {name} in docs/tables.yaml; defined are {sorted(tables)}")
        used.add(name)
        return f"<!-- table: {name} -->\n\n{tables[name].markdown()}\n\n<!-- /table -->"

    if unpaired := MARKER.findall(TABLE.sub("", HELD.sub("", text))):
        raise ValueError(f"markers without a counterpart: {unpaired}")
    return TABLE.sub(table, text)


def report_from(page: Path) -> str | None:
    """Return the path of the report as a page links it; None for the documentation, whose site has no benchmarks."""
    report = ROOT / "benchmarks" / "evidence.md"
    if page.is_relative_to(ROOT / "docs"):
        return None
    return "" if page == report else Path(os.path.relpath(report, page.parent)).as_posix()


def main(*, check: bool) -> int:
    """Write all pages, or name those that differ; return the exit status."""
    tables, used = definitions(DEFINITIONS.read_text(encoding="utf-8")), set[str]()
    report = Report(read_orderings(ORDERINGS) if ORDERINGS.exists() else ())
    differ = []
    for page in pages():
        old = page.read_text(encoding="utf-8")
        try:
            new = regenerated(report.written(old, report_from(page)), tables, used)
        except ValueError as error:
            raise ValueError(f"{page.relative_to(ROOT)}: {error}") from error
        if new != old:
            differ.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(new, encoding="utf-8")
    if unused := set(tables) - used:
        raise ValueError(f"tables of docs/tables.yaml that no page holds: {sorted(unused)}")
    if differ:
        sys.stdout.write(f"{'differ from benchmarks/results' if check else 'written'}: {', '.join(differ)}\n")
    unexplained = report.problems()
    sys.stdout.write("".join(f"{problem}\n" for problem in unexplained))
    return int(bool(unexplained) or (check and bool(differ)))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
