"""What an adaptation ends with: which model to use, the cheapest of equal quality, a page that compares all."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from embrew.adapting.preparation.prepare import Prepared, PreparedManifest
from embrew.evaluation import Result, find_task
from embrew.evaluation.kinds.retrieval import RANKING_DEPTH
from embrew.evaluation.uncertainty import Difference, compare, interval
from embrew.files.formats import versions
from embrew.files.writing import atomic_path
from embrew.inspection import command
from embrew.report.cost import mark_fronts, pareto_plot
from embrew.report.page import rendered
from embrew.report.queries import TaskTexts, change_list, changed_queries, ranked, texts_of_task
from embrew.report.reproduce import hardware
from embrew.report.section import Values, model_colours
from embrew.report.verdict import points

PAGE, ADAPTED = "report.html", "adapted.json"
SCORES = {"ndcg_at_10": "nDCG@10", "recall_at_10": "Recall@10", "mrr_at_10": "MRR@10"}
FEW_QUERIES, FEW_PAIRS = 50, 500


class Scores(TypedDict):
    """What `adapt` knows once all models are scored: `models` has a row per `RaceRow`."""

    advice: list[str]
    best: str
    cheapest: str
    models: list[dict[str, Any]]


class AdaptReport(Scores):
    """The content of `adapted.json`; paths are relative to the output folder, `vectors` is the best one's hash."""

    format: int
    starts: dict[str, str]
    data: PreparedManifest
    versions: dict[str, str | None]
    encoder: str | None
    vectors: str | None
    exported: str | None
    minutes: float
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RaceRow:
    """A model with its scores: a row of the race's table.

    Attributes:
        name: name in tables.
        dev, test: results; where no step of training was better on dev, those of the start.
        results: folder of the test's results.
        start: name of the start; empty for BM25.
        model: recipe, folder or Hub id that opens it; None: it is no encoder.
        stage: folder of a trained encoder.
        dimensions: number of dimensions of a vector.
        parameters: number of weights.
        milliseconds: time in which the start encodes a text.
        seconds: time of training; None: nothing was trained.
        steps: number of steps of the last stage.
        best_step: step of the last stage that dev chose; 0: the start itself.
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
    best_step: int | None = None

    @property
    def variant(self) -> str:
        """The name without that of the start."""
        return self.name.removeprefix(self.start).removeprefix(",").strip() or "as it is"

    def summary(self, folder: Path) -> dict[str, Any]:
        """Return the row as JSON-serialisable data; its results and encoder are relative to the output folder."""
        of_splits = {"dev": self.dev, "test": self.test}
        scores = {f"{split}_{key}": result.scores[key] for split, result in of_splits.items() for key in SCORES}
        intervals = {f"{split}_interval": interval(result) for split, result in of_splits.items()}
        return {
            "model": self.name,
            "start": self.start or None,
            **scores,
            **intervals,
            "milliseconds": self.milliseconds,
            "dimensions": self.dimensions,
            "parameters": self.parameters,
            "seconds": self.seconds,
            "steps": self.steps,
            "kept_step": self.best_step,
            "results": str(self.results.relative_to(folder)),
            "encoder": None if self.stage is None else str(self.stage.relative_to(folder)),
        }


def best_of(rows: Sequence[RaceRow]) -> RaceRow:
    """Return the encoder with the highest score on dev; of equal ones the first, which is an untrained one."""
    return max((row for row in rows if row.model is not None), key=lambda row: row.dev.main_score)


def cheapest_of(rows: Sequence[RaceRow], best: RaceRow) -> RaceRow:
    """Return the fastest encoder whose difference to the best on dev can be chance: its interval holds 0."""
    others = [row for row in rows if row.model is not None and row.best_step != 0]
    near = [row for row in others if row is best or paired_difference(row.dev, best.dev).low <= 0]
    return min(near, key=lambda row: (row.milliseconds, -row.dev.main_score))


def named_first(rows: Sequence[RaceRow], best: RaceRow, data: Prepared) -> RaceRow:
    """Return the row to use: the best on dev, perhaps BM25 or the best encoder fused with it.

    Without users' questions it is the best encoder: questions made of documents repeat their words, so BM25 finds them
    better than users' ones.
    """
    return best if data.manifest.get("questions_made") else max((best, *rows[-2:]), key=lambda row: row.dev.main_score)


def advice_lines(rows: Sequence[RaceRow], best: RaceRow, data: Prepared, *, quick: bool) -> list[str]:
    """Return what to use, the cheapest of equal quality, and what to do next.

    Args:
        rows: all rows; the last two are BM25, and the best encoder fused with it.
        best: the encoder that dev chose.
        data: the numbers of pairs and questions.
        quick: whether the run was a quick one.
    """
    models = [row for row in rows if row.model is not None and row.best_step != 0]
    first = named_first(rows, best, data)
    score = f"nDCG@10 {100 * first.test.main_score:.1f} on {data.count('test_queries')} held-out {_questions(data)}"
    alone = f"{best.name} alone, the best encoder of {len(models)}, has {100 * best.test.main_score:.1f}"
    lead = f"Use {best.name}: {score}, the best of {len(models)} on dev."
    if first is rows[-1]:
        search = command("search", "OUT/encoder", "--index", "DIR", "--hybrid")
        lead = f"Use {best.name} fused with BM25 ({search}), the best on dev: {score}; {alone}."
    elif first is rows[-2]:
        lead = f"BM25, which compares words and needs no model, is the best on dev: {score}; {alone}."
    cheapest = cheapest_of(rows, best)
    second = f"No faster encoder is within chance of its score on dev; it takes {best.milliseconds:.1f} ms per text."
    if cheapest is not best:
        difference = points(paired_difference(best.dev, cheapest.dev), digits=1)
        second = (
            f"{cheapest.name} cannot be distinguished from it on dev ({difference}), and takes "
            f"{cheapest.milliseconds:.1f} ms per text instead of {best.milliseconds:.1f}."
        )
    return [lead, second, _next(rows, best, data, quick=quick)]


def _questions(data: Prepared) -> str:
    """Return what dev and test ask with."""
    if not data.manifest.get("questions_made"):
        return "questions"
    return "questions that a model wrote" if data.manifest["made_of"].get("questions") else "first sentences"


def paired_difference(a: Result, b: Result) -> Difference:
    """Return the paired difference of two results, B minus A."""
    difference = compare(a, b)
    assert difference is not None, "retrieval has examples"
    return difference


def _next(rows: Sequence[RaceRow], best: RaceRow, data: Prepared, *, quick: bool) -> str:
    """Return what to do next."""
    if quick:
        return "This was a quick run, too short to compare models: leave out --quick."
    actions, pairs, questions = [], data.count("train_pairs"), data.count("test_queries")
    if best.best_step is not None and best.best_step == best.steps:
        actions.append("give more --minutes: its last step was the best on dev")
    if best.best_step is None and any(row.best_step == 0 and row.start == best.start for row in rows):
        actions.append("training did not improve it on dev: a lower rate may (stages.contrast.training.learning_rate)")
    if data.manifest.get("questions_made"):
        actions.append(f"give {FEW_QUERIES} or more questions of users, with answers (--pairs): they ask other ones")
    elif pairs < FEW_PAIRS:
        actions.append(f"give more than {pairs} pairs to train on")
    if questions < FEW_QUERIES:
        actions.append(f"hold out more: {questions} questions show large differences only")
    actions = actions or [f"serve it: {command('serve', 'OUT/export')}"]
    return f"Next: {'; '.join(actions)}."


def write_page(folder: Path, rows: Sequence[RaceRow], *, best: RaceRow, data: Prepared, advice: Sequence[str]) -> None:
    """Write `report.html`: what to use, scores, the plot of cost, questions won and lost, and how it was measured.

    Args:
        folder: the output folder.
        rows: all rows.
        best: the encoder that dev chose.
        data: what was trained on and held out.
        advice: sentences of `advice_lines`.
    """
    starts = list(dict.fromkeys(row.start for row in rows if row.start))
    colour = dict(zip(starts, model_colours(starts), strict=True))
    marks: list[Values] = [
        {
            "model": row.name if row.model is None else row.start,
            "size": row.variant,
            "score": row.dev.main_score,
            "milliseconds": row.milliseconds,
            "bytes": None,
            "colour": "var(--quiet)" if row.model is None else colour[row.start],
            "is_hollow": row.seconds is None and row.model is not None,
        }
        for row in rows
        if row.best_step != 0
    ]
    page = rendered(
        "adapt.html",
        advice=advice,
        groups=[[row for row in rows if row.start == start] for start in (*starts, "")],
        best=named_first(rows, best, data),
        interval_of=interval,
        plot=pareto_plot(
            mark_fronts(marks),
            "milliseconds",
            title=SCORES["ndcg_at_10"],
            axis="ms per text",
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


def other_of(rows: Sequence[RaceRow], best: RaceRow) -> RaceRow:
    """Return what the best is compared with by question: its own start if it was trained, else the next best."""
    if best.seconds is not None:
        return next(row for row in rows if row.start == best.start and row.seconds is None and row.model is not None)
    rest = [row for row in rows if row is not best and row.best_step != 0]
    others = [row for row in rest if row.start != best.start and row.model is not None]
    return max(others or rest, key=lambda row: row.dev.main_score)


def _changes(best: RaceRow, other: RaceRow, folder: Path) -> Values:
    """Return questions of the test that the best encoder wins, and those that it loses, with texts."""
    before, after = ranked(other.test), ranked(best.test)
    changed = [] if before is None or after is None else changed_queries(before, after)
    texts = texts_of_task(find_task(folder), "queries") if changed else TaskTexts()
    return {"kind": "queries", "depth": RANKING_DEPTH, **change_list((other.name, best.name), changed, texts)}
