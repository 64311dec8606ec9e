"""What an adaptation ends with: sentences on whether training paid, a page that compares the models, a JSON file."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.adapting.prepare import Prepared
from embrew.evaluation import Result, find_task
from embrew.evaluation.uncertainty import Difference, compare
from embrew.report.making import make_report
from embrew.report.page import check_packages
from embrew.report.sources import Source

logger = logging.getLogger(__name__)
PAGE, ADAPTED = "report.html", "adapted.json"
SCORES = {"ndcg_at_10": "nDCG@10", "recall_at_10": "Recall@10", "mrr_at_10": "MRR@10"}
FEW_QUERIES, FEW_PAIRS = 50, 500


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model with its scores.

    Attributes:
        name: for tables.
        dev, test: its results.
        recipe: of an untrained model.
        stage: folder of a trained encoder.
        seconds: of training.
        steps, kept: of the last stage: all, and the one that dev chose.
    """

    name: str
    dev: Result
    test: Result
    recipe: Path | None = None
    stage: Path | None = None
    seconds: float | None = None
    steps: int | None = None
    kept: int | None = None

    @property
    def is_model(self) -> bool:
        """Whether it is an encoder."""
        return self.recipe is not None or self.stage is not None

    def summary(self, results: Path, folder: Path) -> dict[str, Any]:
        """Return the row as JSON-serialisable data; its results and encoder are relative to the output folder."""
        of_splits = {"dev": self.dev, "test": self.test}
        found = {f"{split}_{key}": result.scores[key] for split, result in of_splits.items() for key in SCORES}
        found |= {"seconds": self.seconds, "steps": self.steps, "kept_step": self.kept}
        encoder = None if self.stage is None else str(self.stage.relative_to(folder))
        return {"model": self.name, **found, "results": str(results.relative_to(folder)), "encoder": encoder}

    def source(self, results: Path) -> Source:
        """Return where the page finds results and encoder."""
        if self.recipe is not None:
            return Source(results, model=str(self.recipe), untrained=True)
        assert self.stage is not None, "an encoder"
        return Source(results, model=str(self.stage), run=self.stage.parent, stage=self.stage.name)


def first_lines(rows: Sequence[Row], best: Row, data: Prepared, *, quick: bool) -> list[str]:
    """Return sentences: whether training has beaten the best untrained pooling on the test, and what to change if not.

    Args:
        rows: the untrained model first, BM25 last.
        best: the trained model that dev chose.
        data: its numbers of pairs and questions.
        quick: the run was a quick one.
    """
    before, words = rows[0], rows[-1]
    tested = compare(before.test, best.test)
    assert tested is not None, "retrieval has examples"
    scores = f"nDCG@10 {100 * best.test.main_score:.1f} against {100 * before.test.main_score:.1f} of {before.name}"
    interval = f"{_points(tested)} on {data.count('test_queries')} held-out questions"
    clearly = "clearly " if tested.difference > 0 else ""
    outcome = "paid" if tested.low > 0 else f"has not {clearly}beaten the best untrained pooling"
    lines = [f"Training {outcome}: {best.name} has {scores}, {interval}."]
    if tested.low <= 0:
        lines += _advice(best, data, quick=quick)
    elif best.kept == best.steps and not quick:
        lines.append("Its last step was the best on dev: more --minutes may give more.")
    by_words = f"BM25, which compares words and needs no model, has {100 * words.test.main_score:.1f}"
    ahead = words.test.main_score > max(best.test.main_score, before.test.main_score)
    lines.append(f"{by_words}, more than these: search with it too." if ahead else f"{by_words}.")
    if quick:
        lines.append("This was a quick run, too short to compare methods: leave out --quick, or give --minutes.")
    return lines


def _advice(best: Row, data: Prepared, *, quick: bool) -> list[str]:
    """Return what to change where training has not paid."""
    advice, pairs = [], data.count("train_pairs")
    if best.kept is not None and best.kept == best.steps and not quick:
        advice.append("its last step was the best on dev: give more --minutes")
    if best.kept is not None and best.steps is not None and best.kept <= best.steps / 4 and best.steps > 3:
        lower = f"stages.{best.stage.name if best.stage else 'NAME'}.training.learning_rate"
        advice.append(f"an early step ({best.kept} of {best.steps}) was the best on dev: lower the rate ({lower}=5e-5)")
    if pairs < FEW_PAIRS:
        advice.append(f"{pairs} pairs are few to train on: give more")
    if data.count("test_queries") < FEW_QUERIES:
        advice.append(f"{data.count('test_queries')} questions are few to test on: small differences cannot be seen")
    return [f"What to change: {'; '.join(advice)}."] if advice else []


def _points(tested: Difference) -> str:
    return f"{100 * tested.difference:+.1f} points (95 % interval {100 * tested.low:+.1f} to {100 * tested.high:+.1f})"


def write_page(
    folder: Path,
    rows: Sequence[Row],
    results: Sequence[Path],
    *,
    test: Path,
    said: Sequence[str],
    opener: Callable[[Source], Any],
) -> None:
    """Write `report.html`, which compares the models; none where a package of `embrew[report]` is missing.

    Args:
        folder: the output folder.
        rows: the models, the untrained one first; BM25, which is no model, is left out.
        results: folder of the test results of each.
        test: the BEIR folder of the test.
        said: sentences before the verdict.
        opener: opens the encoder of a source, to measure it.
    """
    if not has_page():
        return
    sources = {row.name: [row.source(place)] for row, place in zip(rows, results, strict=True) if row.is_model}
    command = shlex.join(["embrew", *sys.argv[1:]])
    make_report(sources, [find_task(test)], folder / PAGE, opener=opener, command=command, said=said)


def has_page() -> bool:
    """Return whether the page can be written; a warning says what is missing."""
    try:
        check_packages()
    except ImportError as error:
        logger.warning("no page is written: %s", error)
        return False
    return True
