"""Write tables and figures of `benchmarks/results` into the documentation.

    python scripts/result_tables.py [--check]

`docs/tables.yaml` defines tables; its head explains the keys. A page (README.md, docs/, benchmarks/*.md) holds
`<!-- table: NAME -->` and `<!-- /table -->`, and what is between them is replaced. In a sentence,
`<!-- value: NAME :: ROW :: COLUMN -->` and `<!-- /value -->` hold one cell. With `--check` nothing is written, and the
exit status is 1 if a text differs.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from embrew.config.yaml_text import parse_yaml

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DEFINITIONS = ROOT / "docs" / "tables.yaml"
TABLE = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- /table -->", re.DOTALL)
VALUE = re.compile(r"<!-- value: ([\w-]+) :: (.+?) :: (.+?) -->.*?<!-- /value -->")
NUMBER = re.compile(r"^-?\d+(\.\d+)?")
MARKER = re.compile(r"<!-- /?(?:table|value)\b.*?-->")
NOT_MEASURED, NO_TEXT = "not measured", "–"


def pages() -> list[Path]:
    """Return the files that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]


@cache
def result(name: str) -> Any:
    """Return the content of `benchmarks/results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def path_of(given: Any) -> list[Any]:
    """Return a path as a list of keys; none for nothing."""
    return [] if given is None else given if isinstance(given, list) else [given]


def find(content: Any, path: list[Any]) -> Any:
    """Return what a path leads to.

    A name enters an object, or each object of a list; a number is an index; `{name: value}` selects the only object of
    a list that has this value; a list of names means the mean over them, for each seed.

    Raises:
        KeyError: a part of the path leads to nothing, or to several objects.
    """
    for part in path:
        if isinstance(part, Mapping):
            chosen = [item for item in content if part.items() <= item.items()]
            if len(chosen) != 1:
                raise KeyError(f"{part} (found {len(chosen)} times)")
            content = chosen[0]
        elif isinstance(part, list):
            content = [statistics.fmean(seed) for seed in zip(*(content[name] for name in part), strict=True)]
        elif isinstance(content, list) and isinstance(part, str):
            content = [item[part] for item in content]
        elif isinstance(content, list) and not 0 <= part < len(content):
            raise KeyError(part)
        else:
            content = content[part]
    return content


@dataclass(frozen=True)
class Row:
    """Where the cells of a row are read, and `cells` with their text; its other cells are `otherwise`, if it is set."""

    path: Any = None
    file: str | None = None
    cells: Mapping[str, str] = field(default_factory=dict)
    otherwise: str | None = None


def filled(text: str, row: Row) -> str:
    """Return a text with the row's path in place of `{row}`."""
    return text.replace("{row}", str(row.path))


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read and shown; the fields are the keys in `docs/tables.yaml`."""

    path: Any = None
    at: Any = None
    file: str | None = None
    scale: float = 1
    format: str = ".1f"
    range: tuple[Any, Any] | None = None
    minus: Any = None
    show: str = "mean"
    best: str | None = None

    def path_in(self, row: Row, given: Any) -> list[Any]:
        """Return a path of the column within a row: `{row}` stands for the row's path, which else comes first."""
        path = path_of(given)
        if "{row}" in f"{path} {self.file}":
            return [filled(part, row) if isinstance(part, str) else part for part in path]
        return [*path_of(row.path), *path]

    def value(self, content: Any, row: Row) -> Any:
        """Return the value of a row: a number, a list with one per seed, or a text."""
        value = find(content, self.path_in(row, self.path))
        if self.minus is None:
            return value
        other = find(content, self.path_in(row, self.minus))
        return [one - less for one, less in zip(value, other, strict=True)]

    def ends(self, content: Any, row: Row) -> list[Any]:
        """Return the two values of the range beside a value, if there is one."""
        place = find(content, self.path_in(row, self.path)[:-1]) if self.range else {}
        return [place[end] for end in self.range or () if place[end] is not None]

    def text(self, value: Any) -> str:
        """Return a value as a cell: a number, the mean ± standard deviation of several, or a text as it is."""
        if value is None:
            return NOT_MEASURED
        if isinstance(value, str):
            return value
        numbers = [self.scale * number for number in (value if isinstance(value, list) else [value])]
        if self.show == "count":
            return str(len(numbers))
        mean = format(statistics.fmean(numbers), self.format)
        if len(numbers) == 1:
            return mean
        return f"{mean} ± {format(statistics.stdev(numbers), self.format.removeprefix('+'))}"


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
                if row.otherwise is None and column is not None:
                    file = self.file_of(row, column)
                    shown = f"`benchmarks/results/{file}.{'md' if (RESULTS / f'{file}.md').exists() else 'json'}`"
                    files = by_date.setdefault((result(file).get("date") or "")[:10], [])
                    files += [] if shown in files else [shown]
        if not by_date:
            return ""
        said = "; ".join(", ".join([*files, *([date] if date else [])]) for date, files in by_date.items())
        several = any("±" in cell for row in self.cells().values() for cell in row.values())
        return f"Source: {said}." + (" Mean ± standard deviation over seeds." if several else "")

    def markdown(self) -> str:
        """Return the table and its source."""
        lines = [
            f"| {self.first} | " + " | ".join(self.columns) + " |",
            "|---|" + "---:|" * len(self.columns),
            *(f"| {label} | " + " | ".join(cells.values()) + " |" for label, cells in self.cells().items()),
        ]
        return "\n".join([*lines, "", self.source()]).rstrip()


def labelled(given: Mapping[str, Any] | list[str]) -> Mapping[str, Any]:
    """Return labels with what they stand for; a list means labels that are keys themselves."""
    return given if isinstance(given, Mapping) else {label: label for label in given}


def table_of(name: str, given: Mapping[str, Any]) -> Table:
    """Return the table that `docs/tables.yaml` describes."""
    common = {key: given[key] for key in ("scale", "format") if key in given}
    columns: dict[str, Column | None] = {}
    for label, spec in labelled(given["columns"]).items():
        own = spec if isinstance(spec, Mapping) else {"path": spec}
        columns[label] = None if spec is None else Column(**{**common, **own})
    rows: dict[str, Row] = {}
    for label, spec in labelled(given["rows"]).items():
        row = Row(**spec) if isinstance(spec, Mapping) else Row(path=spec)
        if row.path in (None, "") and row.file is None:
            row = replace(row, otherwise="" if row.path == "" else NOT_MEASURED)
        rows[label] = row
        if unknown := set(row.cells) - set(columns):
            raise ValueError(f"table {name}, row {label}: no columns {sorted(unknown)}; columns are {list(columns)}")
    unknown = set(given) - {"first", "file", "at", "columns", "rows", *common}
    if unknown:
        raise ValueError(f"table {name}: unknown keys {sorted(unknown)}")
    return Table(name, given["first"], columns, rows, given.get("file"), given.get("at"))


def definitions(text: str) -> dict[str, Table]:
    """Return the tables of a definition file by name."""
    return {name: table_of(name, given) for name, given in parse_yaml(text, source=DEFINITIONS.name).items()}


def regenerated(text: str, tables: Mapping[str, Table], used: set[str]) -> str:
    """Return a page's text with its tables and values written anew; add the names of the tables to `used`.

    Raises:
        ValueError: a table, row or column is not defined, or a marker has no counterpart.
    """

    def known(name: str) -> Table:
        if name not in tables:
            raise ValueError(f"no table {name} in docs/tables.yaml; defined are {sorted(tables)}")
        used.add(name)
        return tables[name]

    def table(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n\n{known(found[1]).markdown()}\n\n<!-- /table -->"

    def value(found: re.Match[str]) -> str:
        table, (row, column) = known(found[1]), found.group(2, 3)
        if row not in table.rows or column not in table.columns:
            raise ValueError(
                f"table {found[1]} has no cell {row} :: {column}; it has {list(table.rows)}, {list(table.columns)}"
            )
        return f"<!-- value: {found[1]} :: {row} :: {column} -->{table.cell(row, column)}<!-- /value -->"

    if unpaired := MARKER.findall(VALUE.sub("", TABLE.sub("", text))):
        raise ValueError(f"markers without a counterpart: {unpaired}")
    text = TABLE.sub(
        lambda found: f"<!-- table: {found[1]} -->\n\n{known(found[1]).markdown()}\n\n<!-- /table -->", text
    )
    return VALUE.sub(value, text)


def main(*, check: bool) -> int:
    """Write all pages, or name those that differ; return the exit status."""
    tables, used = definitions(DEFINITIONS.read_text(encoding="utf-8")), set[str]()
    differ = []
    for table in tables.values():
        table.cells()  # also of tables that sentences use a cell of
    for page in pages():
        old = page.read_text(encoding="utf-8")
        try:
            new = regenerated(old, tables, used)
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
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
