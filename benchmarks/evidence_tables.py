"""The result files of a plan that `evidence.py` has run: one Markdown and one JSON file, a row's means over seeds.

A table may be made on several machines: a row and seed that this one has not run keep the scores of the JSON file that
is there, if it says that suite, dtype and settings were the plan's. Contents of recipes and data are not compared: the
commit of the run stands beside its rows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claims import settle
from harness import circumstances, origin, table
from planned import cell

from embrew.evaluation import Result, grid_table
from embrew.files.reading import read_json

GAP = ("share", "other")


@dataclass(frozen=True)
class Judged:
    """One row after one stage with one seed.

    Args:
        averages, tasks: main scores by name, 0 to 1.
        further: scores of the plan's `also` by `task: score`, as they are.
        settings: the keys of the plan's entry that decide what the row is.
        drawn: something depends on the seed.
        compresses: its last stage does.
        results: of the tasks; empty where the scores were read from a table.
        origin: commit, hardware and date of the table that the scores were read from.
    """

    row: str
    seed: int
    backbone: str
    averages: Mapping[str, float]
    tasks: Mapping[str, float]
    further: Mapping[str, float | None]
    settings: Mapping[str, Any]
    gap: Mapping[str, float] | None = None
    drawn: bool = True
    compresses: bool = False
    results: list[Result] = field(default_factory=list)
    origin: Mapping[str, Any] | None = None


class Earlier:
    """The rows of a table that was written before, with the suite, dtype and settings of the plan.

    Args:
        file: the table's JSON file; it need not exist.
        plan: what is judged now.
        tasks: names of the suite's tasks.
    """

    def __init__(self, file: Path, plan: Mapping[str, Any], tasks: Collection[str]) -> None:
        record = read_json(file) if file.exists() else {}
        same = all(record.get(key) == (plan.get(key) or None) for key in ("suite", "dtype", "set"))
        self.record = record if same else {}
        self.tasks = set(tasks)
        self.missing: list[str] = []

    def find(
        self, row: str, seed: int, settings: Mapping[str, Any], *, seeded: bool = True, **facts: bool
    ) -> Judged | None:
        """Return what the table has of a row and seed.

        It is noted as missing where the table has nothing, or has it with other settings or other tasks.
        """
        record = self.record
        scores = record.get("rows", {}).get(row, {})
        seeds, means = record.get("seeds", {}).get(row, []), record.get("averages", [])
        if (
            seed not in seeds
            or record.get("settings", {}).get(row) != settings
            or set(scores) - set(means) != self.tasks
        ):
            self.missing.append(f"{row} (seed {seed})" if seeded else row)
            return None
        number = seeds.index(seed)

        def at(kind: str) -> dict[str, Any]:
            return {name: values[number] for name, values in record.get(kind, {}).get(row, {}).items()}

        mine = at("rows")
        gap = {name.removeprefix("gap: "): value for name, value in at("gap").items() if value is not None}
        return Judged(
            row,
            seed,
            record["backbones"][row],
            {name: mine[name] for name in means},
            {name: score for name, score in mine.items() if name not in means},
            at("also"),
            settings,
            gap or None,
            origin=next(
                (one for one in record.get("earlier", []) if seed in one["seeds"].get(row, [])),
                record,
            ),
            **facts,
        )


def gap_of(folder: Path, stage: str) -> dict[str, float] | None:
    """The share of the gap that a stage has closed at its end, own and other memory; None where not measured."""
    file = folder / "run.json"
    measured = json.loads(file.read_text()).get("gap", {}).get(stage) if file.exists() else None
    return {name: measured["end"][name] for name in GAP} if measured and "end" in measured else None


def write(plan_file: Path, plan: dict[str, Any], judged: list[Judged], missing: list[str], folder: Path) -> None:
    """Write a JSON file and, unless the plan names a `page`, a Markdown file of means and deviations over seeds."""
    around = circumstances(f"python benchmarks/evidence.py benchmarks/plans/{plan_file.name}")
    rows: dict[str, list[Judged]] = {}
    for found in judged:
        rows.setdefault(found.row, []).append(found)
    means, tasks = list(judged[0].averages), list(judged[0].tasks)
    values = {
        row: {
            **{name: [found.averages[name] for found in several] for name in means},
            **{name: [found.tasks[name] for found in several] for name in tasks},
        }
        for row, several in rows.items()
    }
    further = {
        row: {name: [found.further[name] for found in several] for name in several[0].further}
        for row, several in rows.items()
    }
    gaps = {
        row: {f"gap: {name}": [found.gap[name] if found.gap else None for found in several] for name in GAP}
        for row, several in rows.items()
        if any(found.compresses for found in several)
    }
    shared = {name: plan[name] for name in ("dtype", "set") if plan.get(name)}
    record = {"title": plan["title"], "suite": plan["suite"], **shared, **around, "averages": means, "rows": values}
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
    record["settings"] = {row: several[0].settings for row, several in rows.items()}
    earlier = earlier_runs(judged)
    if earlier:
        record["earlier"] = earlier
    if missing:
        record["missing"] = missing
    (folder / f"{plan_file.stem}.json").write_text(json.dumps(record, indent=2) + "\n")
    if "page" in plan:
        return
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
        *map(origin_line, earlier),
        f"- settings of all rows: {', '.join(plan.get('set', [])) or 'none'}",
        *([f"- in the plan and not measured yet: {', '.join(missing)}"] if missing else []),
        f"- seeds: {sorted({found.seed for found in judged})}",
    ]
    (folder / f"{plan_file.stem}.md").write_text("\n".join(lines) + "\n")


def earlier_runs(judged: list[Judged]) -> list[dict[str, Any]]:
    """The tables that scores were read from: commit, hardware, date, and seeds by row."""
    runs: dict[str, dict[str, Any]] = {}
    for found in judged:
        if found.origin:
            facts = {key: found.origin[key] for key in ("commit", "dirty", "hardware", "date")}
            one = runs.setdefault(json.dumps(facts), {**facts, "seeds": {}})
            one["seeds"].setdefault(found.row, []).append(found.seed)
    return list(runs.values())


def origin_line(run: Mapping[str, Any]) -> str:
    """An earlier run as a line of a list."""
    rows = "; ".join(f"{row}, seed {', '.join(map(str, seeds))}" for row, seeds in run["seeds"].items())
    changed = " with changes" if run["dirty"] else ""
    return f"- kept from {run['date']} (commit {run['commit']}{changed}, {run['hardware']['processor']}): {rows}"


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


def further_grid(further: dict[str, dict[str, list[float | None]]]) -> list[str]:
    """A Markdown table of further scores: means over seeds, nothing where a score does not apply."""
    columns = list(next(iter(further.values())))

    def shown(numbers: list[float | None]) -> str:
        known = [number for number in numbers if number is not None]
        return f"{statistics.fmean(known):.4g}" if known else ""

    return table(["", *columns], [[row, *(shown(found[name]) for name in columns)] for row, found in further.items()])
