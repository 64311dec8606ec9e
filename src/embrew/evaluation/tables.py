"""Compare results: several models in one table, and the difference between two of them."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.evaluation.report import Result, averages, read_result, size_of
from embrew.evaluation.uncertainty import Difference, compare, interval


@dataclass(frozen=True)
class Row:
    """A model in a table: its name and one list of results per seed."""

    name: str
    runs: tuple[tuple[Result, ...], ...]


@dataclass(frozen=True)
class Changed:
    """Differences between two result folders: settings by dotted key, and scores by task."""

    settings: dict[str, tuple[Any, Any]]
    scores: dict[str, tuple[float, float, Difference | None]]
    only: dict[str, str]  # task: the side that has it


def read_folder(folder: str | Path) -> list[tuple[Result, dict[str, Any]]]:
    """Read the results of a folder with their sidecars, sorted by file name.

    Raises:
        FileNotFoundError: no such folder, or it holds no results.
    """
    files = sorted(file for file in Path(folder).glob("*.json") if file.with_suffix(".run.json").is_file())
    if not files:
        raise FileNotFoundError(f"{folder} holds no results; embrew evaluate --output {folder} writes them")
    return [read_result(file) for file in files]


def rows_of(given: Sequence[str]) -> list[Row]:
    """Return rows from folders; `NAME=FOLDER` sets the name, and folders of the same name are seeds of one row."""
    folders: dict[str, list[str]] = {}
    for entry in given:
        name, equals, folder = entry.partition("=")
        folders.setdefault(name if equals else Path(entry).name, []).append(folder if equals else entry)
    rows = [
        Row(name, tuple(tuple(result for result, _ in read_folder(folder)) for folder in some))
        for name, some in folders.items()
    ]
    for row in rows:
        tasks = {tuple((result.task, result.split) for result in run) for run in row.runs}
        if len(tasks) > 1:
            raise ValueError(
                f"the folders of {row.name!r} hold different tasks; give them different names, or the same tasks"
            )
    return rows


def grid(
    rows: Sequence[Row],
    *,
    averages_only: bool = False,
    intervals: bool = False,
    named: Mapping[str, Sequence[str]] | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Return header and cells with scores times 100: averages, then the tasks that all rows have.

    A task's column names its split and size: `STSB test, 1379 pairs`. Two splits or sizes of a task are two columns.
    A cell is the mean over seeds ± their standard deviation; with one seed and `intervals`, the score and its 95 %
    bootstrap interval.
    """
    tables = [[_scores(run, named) for run in row.runs] for row in rows]
    sets = {frozenset(map(label_of, run)) for row in rows for run in row.runs}
    if len(sets) > 1:  # means over different tasks are not comparable
        tables = [[_scores(run, named, only=frozenset.intersection(*sets)) for run in row.runs] for row in rows]
    columns = [name for name in tables[0][0] if all(name in scores for table in tables for scores in table)]
    if not columns:
        there = "; ".join(f"{row.name}: {', '.join(map(label_of, row.runs[0]))}" for row in rows)
        raise ValueError(f"the results have no task, split and size in common ({there}); evaluate the models alike")
    tasks = {label_of(result) for row in rows for run in row.runs for result in run}
    if averages_only:
        columns = [name for name in columns if name not in tasks] or columns
    cells = []
    for row, table in zip(rows, tables, strict=True):
        known = {label_of(result): result for result in row.runs[0]}
        line = [row.name]
        for column in columns:
            values = [scores[column] for scores in table]
            line.append(_cell(values, known.get(column) if intervals and len(values) == 1 else None))
        cells.append(line)
    return ["", *columns], cells


def difference(a: str | Path, b: str | Path) -> Changed:
    """Return settings that differ between two result folders, and scores with a paired bootstrap test."""
    ours, theirs = ({(r.task, r.split): (r, run) for r, run in read_folder(folder)} for folder in (a, b))
    both = sorted(set(ours) & set(theirs))
    settings: dict[str, tuple[Any, Any]] = {}
    scores: dict[str, tuple[float, float, Difference | None]] = {}
    for task in both:
        (one, run), (other, other_run) = ours[task], theirs[task]
        flat, other_flat = _flat(run), _flat(other_run)
        for key in sorted({*flat, *other_flat} - {"counts"}):
            if flat.get(key) != other_flat.get(key):
                settings.setdefault(key, (flat.get(key), other_flat.get(key)))
        same_data = run["dataset_revision"] == other_run["dataset_revision"]
        sizes = dict.fromkeys((size_of(one.counts), size_of(other.counts)))
        scores[f"{one.task} {one.split}, {' against '.join(sizes)}"] = (
            one.main_score,
            other.main_score,
            compare(one, other) if same_data else None,
        )
    only = {f"{task} ({split})": "A" for task, split in sorted(set(ours) - set(theirs))}
    only |= {f"{task} ({split})": "B" for task, split in sorted(set(theirs) - set(ours))}
    return Changed(settings, scores, only)


def label_of(result: Result) -> str:
    """Return a task with its split and size, as in table headers."""
    return f"{result.task} {result.split}, {size_of(result.counts)}"


def as_markdown(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(line)} |" for line in cells)]) + "\n"


def as_csv(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return comma-separated values."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([["model", *header[1:]], *cells])
    return buffer.getvalue()


def _scores(
    run: Sequence[Result], named: Mapping[str, Sequence[str]] | None, only: frozenset[str] | None = None
) -> dict[str, float]:
    """Return averages and scores of a run, of the tasks in `only` if it is given."""
    kept = [result for result in run if only is None or label_of(result) in only]
    names = {result.task for result in kept}
    there = {name: tasks for name, tasks in (named or {}).items() if set(tasks) <= names}
    return {**averages(kept, there), **{label_of(result): result.main_score for result in kept}}


def _cell(values: Sequence[float], result: Result | None) -> str:
    mean = f"{100 * statistics.fmean(values):.2f}"
    if len(values) > 1:
        return f"{mean} ± {100 * statistics.stdev(values):.2f}"
    bounds = interval(result) if result is not None else None
    return mean if bounds is None else f"{mean} [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key, without those that only name the task or its size."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if not prefix and key in ("counts", "task", "split", "kind"):
            continue
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
