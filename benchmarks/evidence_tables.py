"""The result files of a plan that `evidence.py` has run: one Markdown and one JSON file, a row's means over seeds."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims import settle
from harness import circumstances, origin, table
from planned import cell

from embrew.evaluation import Result, averages, grid_table

GAP = ("share", "other")


@dataclass(frozen=True)
class Judged:
    """One row after one stage with one seed; `drawn`: something depends on the seed; `compresses`: its stage does."""

    row: str
    seed: int
    backbone: str
    results: list[Result]
    gap: dict[str, float] | None = None
    drawn: bool = True
    compresses: bool = False


def gap_of(folder: Path, stage: str) -> dict[str, float] | None:
    """The share of the gap that a stage has closed at its end, own and other memory; None where not measured."""
    file = folder / "run.json"
    measured = json.loads(file.read_text()).get("gap", {}).get(stage) if file.exists() else None
    return {name: measured["end"][name] for name in GAP} if measured and "end" in measured else None


def write(plan_file: Path, plan: dict[str, Any], judged: list[Judged], missing: list[str], folder: Path) -> None:
    """One Markdown and one JSON file: a row's means over seeds, with the standard deviation where there are several."""
    around = circumstances(f"python benchmarks/evidence.py benchmarks/plans/{plan_file.name}")
    rows: dict[str, list[Judged]] = {}
    for found in judged:
        rows.setdefault(found.row, []).append(found)
    tasks = [result.task for result in judged[0].results]
    columns = [*averages(judged[0].results), *tasks]
    values = {
        row: {column: [scores(found)[column] for found in several] for column in columns}
        for row, several in rows.items()
    }
    further = {row: also(several, plan.get("also", {})) for row, several in rows.items()}
    gaps = {
        row: {f"gap: {name}": [found.gap[name] if found.gap else None for found in several] for name in GAP}
        for row, several in rows.items()
        if any(found.compresses for found in several)
    }
    shared = {name: plan[name] for name in ("dtype", "set") if plan.get(name)}
    record = {"title": plan["title"], "suite": plan["suite"], **shared, **around, "rows": values}
    if plan.get("also"):
        record["also"] = further
    if gaps:
        record["gap"] = gaps
    seeds = {row: [found.seed for found in several] for row, several in rows.items()}
    fixed = [row for row, several in rows.items() if not any(found.drawn for found in several)]
    beside = {row: further[row] | gaps.get(row, {}) for row in rows}
    settled = settle(plan.get("claims", []), values, beside, seeds, fixed)
    if settled:
        record["claims"] = settled
    record["backbones"] = {row: several[0].backbone for row, several in rows.items()}
    record["seeds"] = seeds
    if missing:
        record["missing"] = missing
    (folder / f"{plan_file.stem}.json").write_text(json.dumps(record, indent=2) + "\n")
    means = list(averages(judged[0].results))
    lines = [
        f"# {plan['title']}",
        "",
        f"Scores times 100 on the suite `{plan['suite']}`; means over seeds, ± the standard deviation where there are "
        "several.",
        "",
        *([*grid(values, means), ""] if means else []),
        *grid(values, tasks),
        "",
        *depths_and_sizes(rows),
        *(["As they are, not times 100:", "", *further_grid(further), ""] if plan.get("also") else []),
        *gap_table(gaps),
        *claims_table(settled),
        "- backbones, sha256: " + "; ".join(f"{row}: {several[0].backbone[:12]}" for row, several in rows.items()),
        *origin(around),
        f"- settings of all rows: {', '.join(plan.get('set', [])) or 'none'}",
        *([f"- in the plan and not measured yet: {', '.join(missing)}"] if missing else []),
        f"- seeds: {sorted({found.seed for found in judged})}",
    ]
    (folder / f"{plan_file.stem}.md").write_text("\n".join(lines) + "\n")


def claims_table(settled: list[dict[str, Any]]) -> list[str]:
    """What was expected before the runs, and what came of it; nothing where a plan claims nothing."""
    if not settled:
        return []
    rows = [[one["claim"], one["criterion"], one["found"], f"**{one['verdict']}**"] for one in settled]
    return ["Written before the runs:", "", *table(["claim", "criterion", "found", "verdict"], rows), ""]


def gap_table(gaps: dict[str, dict[str, list[float | None]]]) -> list[str]:
    """The share of the gap closed, by rows whose last stage compresses; nothing where none does."""
    if not gaps:
        return []
    rows = []
    for row, measured in gaps.items():
        known = [[v for v in measured[f"gap: {name}"] if v is not None] for name in GAP]
        few = "" if len(known[0]) in (0, len(measured["gap: share"])) else f" ({len(known[0])} seeds)"
        rows.append([row, *(cell(values, digits=2) + few or "not measured" for values in known)])
    return [
        "Share of the gap closed (0: no memory, 1: the text itself), on texts held out from training; as it is:",
        "",
        *table(["", "own memory", "another text's memory"], rows),
        "",
    ]


def depths_and_sizes(rows: dict[str, list[Judged]]) -> list[str]:
    """What retrieval-augmented answers cost, a table a row with its first seed; nothing where there are none."""
    lines: list[str] = []
    for row, (first, *_) in rows.items():
        header, body = grid_table(first.results)
        if body:
            lines += [f"{row}:", "", *table(header, body), ""]
    return lines


def grid(values: dict[str, dict[str, list[float]]], columns: list[str]) -> list[str]:
    """A Markdown table of some columns."""

    def shown(numbers: dict[str, list[float]]) -> list[str]:
        return [cell([100 * number for number in numbers[column]]) for column in columns]

    return table(["", *columns], [[row, *shown(numbers)] for row, numbers in values.items()])


def also(several: list[Judged], names: dict[str, list[str]]) -> dict[str, list[float | None]]:
    """Further scores of a row by `task: score`, one a seed."""
    by_task = [{result.task: result.scores for result in found.results} for found in several]
    return {
        f"{task}: {score}": [found[task][score] for found in by_task] for task, some in names.items() for score in some
    }


def further_grid(further: dict[str, dict[str, list[float | None]]]) -> list[str]:
    """A Markdown table of further scores: means over seeds, nothing where a score does not apply."""
    columns = list(next(iter(further.values())))

    def shown(numbers: list[float | None]) -> str:
        known = [number for number in numbers if number is not None]
        return f"{statistics.fmean(known):.4g}" if known else ""

    return table(["", *columns], [[row, *(shown(found[name]) for name in columns)] for row, found in further.items()])


def scores(found: Judged) -> dict[str, float]:
    """Averages and tasks by name."""
    return {**averages(found.results), **{result.task: result.main_score for result in found.results}}
