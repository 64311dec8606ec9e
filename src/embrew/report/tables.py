"""Tables of several models: scores as text, and Markdown and CSV of them."""

import csv
import io
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from embrew.evaluation.results import Result, averages, label_of
from embrew.evaluation.uncertainty import interval
from embrew.report.comparison import Model

FORMULA = ("=", "+", "-", "@", "\t", "\r")
CsvCell = str | float | None  # of a CSV file
NUMBERS = re.compile(r"[+-][\d.,e± \[\]+-]*")  # a number, with its deviation or interval


def grid(
    rows: Sequence[Model],
    *,
    intervals: bool = False,
    named: Mapping[str, Sequence[str]] | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Return header and cells with scores times 100: averages, then the tasks that all rows have.

    A task's column names its split and size: `STSB test, 1379 pairs`. Two splits or sizes of a task are two columns.
    A cell is the mean over seeds ± their standard deviation; with one seed and `intervals`, the score and its 95 %
    bootstrap interval.
    """
    labels_by_run = [set(map(label_of, run)) for row in rows for run in row.seeds]
    shared = set.intersection(*labels_by_run)  # means over different tasks are not comparable
    tables = [
        [_scores([result for result in run if label_of(result) in shared], named) for run in row.seeds] for row in rows
    ]
    columns = [name for name in tables[0][0] if all(name in scores for table in tables for scores in table)]
    if not columns:
        labels = "; ".join(f"{row.name}: {', '.join(map(label_of, row.seeds[0]))}" for row in rows)
        raise ValueError(f"the results have no task, split and size in common ({labels}); evaluate the models alike")
    cells = []
    for row, table in zip(rows, tables, strict=True):
        first_seed = {label_of(result): result for result in row.seeds[0]}
        line = [row.name]
        for column in columns:
            values = [scores[column] for scores in table]
            line.append(_cell(values, first_seed.get(column) if intervals and len(values) == 1 else None))
        cells.append(line)
    return ["", *columns], cells


def as_markdown(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(line)} |" for line in cells)]) + "\n"


def csv_text(rows: Iterable[Sequence[CsvCell]]) -> str:
    """Return comma-separated values; a text that a spreadsheet would read as a formula begins with an apostrophe."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(map(_inert, row) for row in rows)
    return buffer.getvalue()


def _inert(cell: CsvCell) -> CsvCell:
    is_formula = isinstance(cell, str) and cell.startswith(FORMULA) and not NUMBERS.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def _scores(results: Sequence[Result], named: Mapping[str, Sequence[str]] | None) -> dict[str, float]:
    return {**averages(results, named), **{label_of(result): result.main_score for result in results}}


def _cell(values: Sequence[float], result: Result | None) -> str:
    mean = f"{100 * statistics.fmean(values):.2f}"
    if len(values) > 1:
        return f"{mean} ± {100 * statistics.stdev(values):.2f}"
    bounds = interval(result) if result is not None else None
    return mean if bounds is None else f"{mean} [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"
