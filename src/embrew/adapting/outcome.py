"""What an adaptation ends with: which model to use, the cheapest of equal quality, a page that compares all."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.adapting.prepare import Prepared
from embrew.evaluation import Result, find_task
from embrew.evaluation.kinds.retrieval import RANKS
from embrew.evaluation.uncertainty import Difference, compare, interval
from embrew.files.formats import versions
from embrew.files.writing import atomic_path
from embrew.inspection import command
from embrew.report.changes import changed_queries, ranked
from embrew.report.cost import mark_fronts
from embrew.report.page import rendered
from embrew.report.pareto import pareto_plot
from embrew.report.queries import TaskTexts, change_list, task_texts
from embrew.report.reproduce import hardware
from embrew.report.section import model_colours

PAGE, ADAPTED = "report.html", "adapted.json"
SCORES = {"ndcg_at_10": "nDCG@10", "recall_at_10": "Recall@10", "mrr_at_10": "MRR@10"}
FEW_QUERIES, FEW_PAIRS = 50, 500


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model with its scores.

    Attributes:
        name: for tables.
        dev, test: its results; where no step of training was better on dev, those of the start.
        results: folder of the test's results.
        start: name of the start; empty for BM25.
        model: what opens it: a recipe, a folder or a Hub id; None: it is no encoder.
        stage: folder of a trained encoder.
        dimensions: of a vector.
        parameters: weights of the model.
        milliseconds: to encode a text of the start.
        seconds: of training; None: nothing was trained.
        steps, kept: of the last stage: all, and the one that dev chose; 0: the start itself.
    """

    name: str
    dev: Result
    test: Result
    results: Path
    start: str = ""
    model: str | None = None
    stage: Path | None = None
    dimensions: int | None = None
    parameters: int | None = None
    milliseconds: float | None = None
    seconds: float | None = None
    steps: int | None = None
    kept: int | None = None

    @property
    def how(self) -> str:
        """The name without that of the start."""
        return self.name.removeprefix(self.start).removeprefix(",").strip() or "as it is"

    def summary(self, folder: Path) -> dict[str, Any]:
        """Return the row as JSON-serialisable data; its results and encoder are relative to the output folder."""
        of_splits = {"dev": self.dev, "test": self.test}
        found = {f"{split}_{key}": result.scores[key] for split, result in of_splits.items() for key in SCORES}
        intervals = {f"{split}_interval": interval(result) for split, result in of_splits.items()}
        return {
            "model": self.name,
            "start": self.start or None,
            **found,
            **intervals,
            "milliseconds": self.milliseconds,
            "dimensions": self.dimensions,
            "parameters": self.parameters,
            "seconds": self.seconds,
            "steps": self.steps,
            "kept_step": self.kept,
            "results": str(self.results.relative_to(folder)),
            "encoder": None if self.stage is None else str(self.stage.relative_to(folder)),
        }


def best_of(rows: Sequence[Row]) -> Row:
    """Return the encoder with the highest score on dev; of equal ones the first, which is an untrained one."""
    return max((row for row in rows if row.model is not None), key=lambda row: row.dev.main_score)


def cheapest_of(rows: Sequence[Row], best: Row) -> Row:
    """Return the fastest encoder whose difference to the best on dev can be chance: its interval holds 0."""
    others = [row for row in rows if row.model is not None and row.kept != 0]
    near = [row for row in others if row is best or tested(row.dev, best.dev).low <= 0]
    return min(near, key=lambda row: (row.milliseconds, -row.dev.main_score))


def first_lines(rows: Sequence[Row], best: Row, data: Prepared, *, quick: bool) -> list[str]:
    """Return what to use, the cheapest of equal quality, and what to do next.

    Args:
        rows: all of them, at last BM25, and the best encoder fused with it.
        best: the encoder that dev chose.
        data: its numbers of pairs and questions.
        quick: the run was a quick one.
    """
    models = [row for row in rows if row.model is not None and row.kept != 0]
    first = max((best, *rows[-2:]), key=lambda row: row.dev.main_score)
    score = f"nDCG@10 {100 * first.test.main_score:.1f} on {data.count('test_queries')} held-out questions"
    alone = f"{best.name} alone, the best encoder of {len(models)}, has {100 * best.test.main_score:.1f}"
    lead = f"Use {best.name}: {score}, the best of {len(models)} on dev."
    if first is rows[-1]:
        search = command("search", "OUT/encoder", "--index", "DIR", "--hybrid")
        lead = f"Use {best.name} fused with BM25 ({search}), the best on dev: {score}; {alone}."
    elif first is rows[-2]:
        lead = f"BM25, which compares words and needs no model, is the best on dev: {score}; {alone}."
    cheapest = cheapest_of(rows, best)
    second = f"No faster one is as good on dev, up to chance; it takes {best.milliseconds:.1f} ms a text."
    if cheapest is not best:
        second = (
            f"{cheapest.name} cannot be told from it on dev ({_points(tested(best.dev, cheapest.dev))}), and takes "
            f"{cheapest.milliseconds:.1f} ms a text where it takes {best.milliseconds:.1f}."
        )
    return [lead, second, _next(rows, best, data, quick=quick)]


def tested(a: Result, b: Result) -> Difference:
    """Return the paired difference of two results, B minus A."""
    found = compare(a, b)
    assert found is not None, "retrieval has examples"
    return found


def _next(rows: Sequence[Row], best: Row, data: Prepared, *, quick: bool) -> str:
    """Return what to do next."""
    if quick:
        return "This was a quick run, too short to compare models: leave out --quick, or give --minutes."
    advice, pairs, questions = [], data.count("train_pairs"), data.count("test_queries")
    if best.kept is not None and best.kept == best.steps:
        advice.append("give more --minutes: its last step was the best on dev")
    if best.kept is None and any(row.kept == 0 and row.start == best.start for row in rows):
        advice.append("training did not improve it on dev: a lower rate may (stages.contrast.training.learning_rate)")
    if pairs < FEW_PAIRS:
        advice.append(f"give more than {pairs} pairs to train on")
    if questions < FEW_QUERIES:
        advice.append(f"hold out more: {questions} questions show large differences only")
    advice = advice or [f"serve it: {command('serve', 'OUT/export')}"]
    return f"Next: {'; '.join(advice)}."


def _points(tested: Difference) -> str:
    return f"{100 * tested.difference:+.1f} points (95 % interval {100 * tested.low:+.1f} to {100 * tested.high:+.1f})"


def write_page(folder: Path, rows: Sequence[Row], *, best: Row, data: Prepared, said: Sequence[str]) -> None:
    """Write `report.html`: what to use, scores, the plot of cost, questions won and lost, and how it was measured.

    Args:
        folder: the output folder.
        rows: all of them.
        best: the encoder that dev chose.
        data: what was trained on and held out.
        said: what to use.
    """
    starts = list(dict.fromkeys(row.start for row in rows if row.start))
    colour = dict(zip(starts, model_colours(starts), strict=True))
    points: list[dict[str, Any]] = [
        {
            "model": row.name if row.model is None else row.start,
            "size": row.how,
            "score": row.dev.main_score,
            "milliseconds": row.milliseconds,
            "bytes": None,
            "colour": "var(--quiet)" if row.model is None else colour[row.start],
            "is_hollow": row.seconds is None and row.model is not None,
        }
        for row in rows
        if row.kept != 0
    ]
    page = rendered(
        "adapt.html",
        said=said,
        groups=[[row for row in rows if row.start == start] for start in (*starts, "")],
        best=max((best, *rows), key=lambda row: row.dev.main_score),  # perhaps one with BM25
        interval_of=interval,
        plot=pareto_plot(
            mark_fronts(points),
            "milliseconds",
            title=SCORES["ndcg_at_10"],
            axis="ms a text",
            levels={row.name: row.dev.main_score for row in rows if not row.milliseconds},
        ),
        changes=_changes(best, other_of(rows, best), data.test),
        data=data.manifest,
        versions=versions(),
        hardware=hardware(),
        command=shlex.join(["embrew", *sys.argv[1:]]),
    )
    with atomic_path(folder / PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")


def other_of(rows: Sequence[Row], best: Row) -> Row:
    """Return what the best is compared with by question: its own start if it was trained, else the next best."""
    if best.seconds is not None:
        return next(row for row in rows if row.start == best.start and row.seconds is None and row.model is not None)
    rest = [row for row in rows if row is not best and row.kept != 0]
    others = [row for row in rest if row.start != best.start and row.model is not None]
    return max(others or rest, key=lambda row: row.dev.main_score)


def _changes(best: Row, other: Row, folder: Path) -> dict[str, Any]:
    """Return questions of the test that the best encoder wins, and those that it loses, with texts."""
    before, after = ranked(other.test), ranked(best.test)
    changed = [] if before is None or after is None else changed_queries(before, after)
    texts = task_texts(find_task(folder), "queries") if changed else TaskTexts()
    return {"kind": "queries", "depth": RANKS, **change_list((other.name, best.name), changed, texts)}
