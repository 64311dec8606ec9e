"""What `surfaces.py` says of its rows: figures, the rows a criterion chooses, paired tests, and pictures in words."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import table

from embrew.analysis.surface import Surface, Truncation
from embrew.evaluation import Result
from embrew.evaluation.uncertainty import compare
from embrew.training.run_json import read_run

TERMS = ("express", "compress")


@dataclass(frozen=True)
class Found:
    """One row with one seed.

    Attributes:
        surface: its scores by layer and dimensions.
        halved: if it is drawn, its results at half the depth and `size`.
        plane: if it is drawn, what t-SNE makes of it.
        terms: parts of the loss at the end of training, by the last log line.
    """

    row: str
    seed: int
    surface: Surface
    halved: list[Result]
    plane: Truncation | None
    terms: dict[str, float]


def figures(found: Found, plan: dict[str, Any]) -> dict[str, float]:
    """What the table says of one row and seed, scores times 100."""
    surface, size = found.surface, plan["size"]
    small, half = surface.dims.index(size), surface.layers.index(surface.layers[-1] // 2)
    means = 100 * surface.means
    shallow, shallow_small = surface.shallow_average(), surface.shallow_average(size)
    assert shallow is not None
    assert shallow_small is not None
    reached = [layer for layer, score in zip(surface.layers, means[:, -1], strict=True) if score >= plan["score"]]
    found_here = {
        "last layer": means[-1, -1],
        "≺Avg": 100 * shallow,
        f"last layer, {size} dimensions": means[-1, small],
        f"≺Avg, {size} dimensions": 100 * shallow_small,
        "half the depth": means[half, -1],
        f"half the depth, {size} dimensions": means[half, small],
        f"first layer of {plan['score']}": reached[0] if reached else float("nan"),
    }
    chosen_by = plan.get("criterion", [])
    return {
        **found_here,
        **({criterion(plan): statistics.fmean(found_here[name] for name in chosen_by)} if chosen_by else {}),
        **found.terms,
        **({"t-SNE distance": 100 * found.plane.share} if found.plane else {}),
    }


def criterion(plan: dict[str, Any]) -> str:
    """The name of the column that chooses."""
    return f"mean of {' and '.join(plan['criterion'])}"


def chosen(values: dict[str, list[dict[str, float]]], plan: dict[str, Any]) -> dict[str, str]:
    """The row that the criterion chooses, of those with one name before the last comma; the first of equals."""
    best: dict[str, tuple[float, str]] = {}
    for row, several in values.items():
        name, comma, _ = row.rpartition(", ")
        mean = statistics.fmean(one[criterion(plan)] for one in several)
        if comma and (name not in best or mean > best[name][0]):
            best[name] = mean, row
    return {name: row for name, (_, row) in best.items()}


def terms_of(run: Path) -> dict[str, float]:
    """The parts of the loss in the last log line of a run's last stage; none where it has none."""
    losses = read_run(run).get("losses", {})
    last = list(losses.values())[-1][-1] if losses else {}
    return {name: value for name, value in last.items() if name in TERMS}


def pictured(name: str, plan: dict[str, Any], found: Found) -> list[str]:
    """Both pictures."""
    texts = len(found.plane.full) if found.plane else 0
    return [
        f"![scores over layers and dimensions, time and bytes]({name}.png)",
        "",
        f"t-SNE distance: of a text's whole vector and its first {plan['size']} dimensions, in percent of the mean "
        f"distance between {texts:,} different texts.",
        "",
        f"![whole and truncated vectors]({name}-tsne.png)",
        "",
    ]


def compared(plan: dict[str, Any], found: Found, tests: dict[str, list[dict[str, float]]]) -> list[str]:
    """Every row's paired tests."""
    return [
        f"`{plan['against']}` less each row, times 100, at half the depth and {plan['size']} dimensions, first seed "
        "(95 % interval and two-sided p by paired bootstrap over a task's pairs):",
        "",
        *table(["", *(task.name for task in found.surface.tasks)], [[row, *said(t)] for row, t in tests.items()]),
        "",
    ]


def tested(rows: dict[str, list[Found]], against: str) -> dict[str, list[dict[str, float]]]:
    """Paired tests of one row, first seed, against every other row's, task by task."""
    if against not in rows:
        return {}
    better = {result.task: result for result in rows[against][0].halved}
    made: dict[str, list[dict[str, float]]] = {}
    for row, several in rows.items():
        if row != against and several[0].halved:
            order = [task.name for task in several[0].surface.tasks]
            worse = {result.task: result for result in several[0].halved}
            differences = [compare(worse[name], better[name]) for name in order]
            made[row] = [vars(difference) for difference in differences if difference is not None]
    return made


def said(differences: list[dict[str, float]]) -> list[str]:
    """Differences in words."""
    return [
        f"{100 * d['difference']:+.1f} ({100 * d['low']:+.1f} to {100 * d['high']:+.1f}, p {d['p_value']:.3f})"
        for d in differences
    ]
