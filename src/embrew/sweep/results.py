"""Write the results of a sweep as Markdown, JSON and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from embrew.analysis.plots import drawing, line_styles
from embrew.evaluation.results import Result, averages, label_of
from embrew.files.checksums import sealed
from embrew.files.formats import SWEEP, versions
from embrew.files.names import public_path, public_setting
from embrew.files.writing import atomic_path, write_json
from embrew.report.comparison import Model
from embrew.report.tables import as_markdown, grid
from embrew.sweep.rows import Sweep, SweepRow

MAX_LINES = 6  # maximum number of tasks that have a line each; for more, averages are drawn
LOG_SCALE_FROM = 50  # ratio of largest to smallest x from which the axis is logarithmic


class TrainedRow(NamedTuple):
    """A row with its results: one list per seed."""

    row: SweepRow
    results: tuple[list[Result], ...]


def write_results(folder: Path, sweep: Sweep, finished: Sequence[TrainedRow]) -> None:
    """Write `sweep.md`, `sweep.json` and, if one number varies and two rows are finished, `sweep.png`."""
    header, cells = grid([Model(row.name, results) for row, results in finished])
    drawn = sweep.axis is not None and len(finished) > 1
    source = public_path(sweep.source)
    lines = [f"# {source}", "", as_markdown(header, cells)]
    lines += ["", "Scores times 100; means over seeds, ± their standard deviation where there are several.", ""]
    if any(result.split == "test" for _, by_seed in finished for results in by_seed for result in results):
        lines += ["Some of these are scores on a test split: do not choose a row by them.", ""]
    if drawn:
        lines += [f"![{sweep.axis}](sweep.png)", ""]
    for row, _ in finished:
        settings = ", ".join(map(public_setting, row.overrides)) or "recipe unchanged"
        lines.append(f"- {row.name}: {settings}; stages {', '.join(row.stages)}")
    if len(finished) < len(sweep.rows):
        lines.append(f"- not trained yet: {', '.join(row.name for row in sweep.rows[len(finished) :])}")
    rows = [
        {
            "name": row.name,
            "set": [public_setting(setting) for setting in row.overrides],
            "x": row.x,
            "stages": row.stages,
            "seeds": list(row.recipes),
            "scores": {name: [scores[name] for scores in seeds] for name in seeds[0]},
            "sets": [
                {"task": result.task, "split": result.split, "counts": dict(result.counts)} for result in by_seed[0]
            ],
            "recipe": row.recipe.public().resolved(),
        }
        for row, by_seed, seeds in (
            (row, by_seed, [_scores(results) for results in by_seed]) for row, by_seed in finished
        )
    ]
    about = {"sweep": source, "suite": sweep.suite, "x": sweep.axis, "versions": versions()}
    write_json(folder / SWEEP.file, sealed({"format": SWEEP.number, **about, "rows": rows}))
    with atomic_path(folder / "sweep.md") as temporary:
        temporary.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    if drawn:
        plot_sweep(sweep.axis or "", finished, folder / "sweep.png")


def plot_sweep(axis: str, finished: Sequence[TrainedRow], path: Path) -> None:
    """Draw main scores over the number that varies: one line per task, with the standard deviation over seeds."""
    ordered = sorted(finished, key=lambda entry: entry.row.x or 0.0)
    numbers = [float(row.x or 0.0) for row, _ in ordered]
    scores = [[_scores(results) for results in by_seed] for _, by_seed in ordered]
    labels = {result.task: label_of(result) for _, by_seed in ordered for result in by_seed[0]}
    tasks = list(dict.fromkeys(result.task for _, by_seed in ordered for result in by_seed[0]))
    names = tasks if len(tasks) <= MAX_LINES else [name for name in scores[0][0] if name not in tasks]
    with drawing(path, 6.8, 4.4) as figure:
        axes = figure.subplots()
        for name, style in zip(names, line_styles(names), strict=True):
            values = [[100 * seed_scores[name] for seed_scores in row_scores] for row_scores in scores]
            means = [statistics.fmean(by_seed) for by_seed in values]
            spread = [statistics.stdev(by_seed) if len(by_seed) > 1 else 0.0 for by_seed in values]
            bars = spread if any(spread) else None
            axes.errorbar(numbers, means, yerr=bars, capsize=3, label=labels.get(name, name), **style)
        if min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_SCALE_FROM:
            axes.set_xscale("log")
        if len(numbers) <= 10:
            axes.set_xticks(numbers, [f"{number:g}" for number in numbers])
            axes.minorticks_off()
        axes.set_xlabel(axis)
        axes.set_ylabel("main score × 100")
        axes.legend()


def _scores(results: Sequence[Result]) -> Mapping[str, float]:
    return {**averages(results), **{result.task: result.main_score for result in results}}
