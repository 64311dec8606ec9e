"""`embrew analyze efficiency`: scores of training runs by samples, steps and epochs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from embrew.cli.analyze import options
from embrew.cli.analyze.comparison import new_table, write
from embrew.cli.arguments import AsJson
from embrew.cli.console import out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embrew.analysis.efficiency import Curve


def efficiency(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Folders of training runs.")],
    metric: Annotated[
        str, typer.Option(help="Score to compare: dev (the mean over the dev sets) or the name of one set.")
    ] = "dev",
    stage: Annotated[
        str | None, typer.Option(help="Use one stage only; by default the stages of a run are concatenated.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Show how many samples each run needs to exceed the best score of this run."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw all runs in one figure.")] = None,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write one row per evaluation to a CSV file.")
    ] = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Show learning curves, score against samples seen, of runs with evaluation.at or evaluation.every."""
    from embrew.analysis.efficiency import as_rows, check_metric, pareto, read_curve
    from embrew.analysis.efficiency_plots import plot_efficiency

    options.check_files(runs, overwrite, plots=[plot], files=[table, output])
    wanted = [*runs, *([against] if against and against not in runs else [])]
    names = _names(wanted)
    curves = [read_curve(run, name=name, stage=stage) for run, name in zip(wanted, names, strict=True)]
    check_metric(curves, metric)
    target = None if against is None else curves[wanted.index(against)]
    goal = None if target is None else target.best(metric)
    front = pareto(curves, metric)
    columns = ["first", "best", "samples", "steps", "epochs", "on the front"]
    columns += [] if target is None else [f"samples to pass {target.name}", "share of its"]
    shown = new_table(*columns, first="run")
    entries = []
    for curve, run in zip(curves, wanted, strict=True):
        entry = _entry(curve, metric, front=sum(name == curve.name for name, _ in front))
        if target is not None and goal is not None:
            entry |= _passing(curve, target, goal, metric)
        entries.append({"run": run, **entry})
        shown.add_row(Text(curve.name), *_cells(entry, target))
    out().print(shown)
    for curve in curves:
        out().print(
            Text(f"{curve.name}: {metric} is measured on {curve.scored_on(metric)}"), style="dim", soft_wrap=True
        )
    if goal is not None and target is not None:
        note = f"best score of {target.name}: {goal:.4f}; only evaluated steps count, without interpolation"
        out().print(Text(note), style="dim")
    if plot is not None:
        plot_efficiency(curves, metric, plot, mark=goal)
    if table is not None:
        _write_csv(table, as_rows(curves, metric))
    moments = as_rows(curves, metric)
    write(output, "efficiency", entries, metric=metric, stage=stage, against=against, moments=moments)


def _entry(curve: Curve, metric: str, *, front: int) -> dict[str, Any]:
    """Return a run's first and best score, and the samples, steps and epochs of the best one."""
    best = max(curve.moments, key=lambda moment: moment.scores[metric])
    return {
        "name": curve.name,
        "first": curve.moments[0].scores[metric],
        "best": best.scores[metric],
        "samples": best.samples,
        "steps": best.step,
        "epochs": best.epochs,
        "pareto": front,
        "scored_on": curve.scored_on(metric),
    }


def _passing(curve: Curve, target: Curve, goal: float, metric: str) -> dict[str, Any]:
    """Return when a run first exceeds the best score of another, and its share of the samples of that one."""
    if curve is target:
        return {}
    found = curve.passes(goal, metric)
    taken = next(moment.samples for moment in target.moments if moment.scores[metric] == goal)
    if found is None:
        return {"passes": None}
    passes = {"samples": found.samples, "stage": found.stage, "steps": found.step, "epochs": found.epochs}
    return {"passes": passes, "share": found.samples / taken if taken else None}


def _cells(entry: dict[str, Any], target: Curve | None) -> list[str]:
    cells = [f"{100 * entry['first']:.2f}", f"{100 * entry['best']:.2f}", f"{entry['samples']:,}", str(entry["steps"])]
    cells += [f"{entry['epochs']:.2f}", str(entry["pareto"])]
    if target is None:
        return cells
    passes, share = entry.get("passes"), entry.get("share")
    never = "–" if "passes" not in entry else "never"
    return [*cells, never if passes is None else f"{passes['samples']:,}", "" if share is None else f"{share:.0%}"]


def _names(runs: Sequence[str]) -> list[str]:
    """Return the shortest ends of the folders' paths that are unique."""
    parts = [Path(run).absolute().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"{', '.join(runs)}: two of these are the same folder; give each run once")


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    from embrew.comparison.tables import csv_text
    from embrew.files.writing import atomic_path

    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[int(row[key]) if key == "pareto" else row.get(key, "") for key in columns] for row in rows]
    with atomic_path(path) as temporary:
        temporary.write_text(csv_text([columns, *cells]), encoding="utf-8")
