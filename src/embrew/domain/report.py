"""The report of a domain run: Markdown, JSON and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.analysis.plots import draw_bars, draw_separation, drawing
from embrew.analysis.separation import Separation
from embrew.comparison.tables import as_markdown
from embrew.domain.matching import IDENTITY
from embrew.evaluation import Result
from embrew.evaluation.uncertainty import compare
from embrew.files.writing import atomic_path, write_json

SCORES = {"ndcg_at_10": "nDCG@10", "recall_at_10": "Recall@10", "mrr_at_10": "MRR@10"}
FEW_QUERIES = 50
MOST_CLASSES = 10  # short answers whose numbers are shown
LONG = f"answer of {IDENTITY} words or more"


@dataclass(frozen=True)
class Step:
    """The encoder before training or after a stage: scores, separation, and the stage's time."""

    name: str
    result: Result
    separation: Separation | None
    seconds: float | None

    def summary(self) -> dict[str, Any]:
        """Return all values as JSON-serialisable data."""
        return {
            "step": self.name,
            **{key: self.result.scores[key] for key in SCORES},
            "separation": None if self.separation is None else self.separation.summary(),
            "seconds": self.seconds,
        }


def write_report(folder: Path, report: Mapping[str, Any], steps: Sequence[Step]) -> None:
    """Write `report.json`, `report.png` and `report.md`."""
    write_json(folder / "report.json", report)
    plot_report(steps, folder / "report.png")
    with atomic_path(folder / "report.md") as temporary:
        temporary.write_text(markdown(report, steps, exported=(folder / "export").exists()), encoding="utf-8")


def markdown(report: Mapping[str, Any], steps: Sequence[Step], *, exported: bool = True) -> str:
    """Return the report as Markdown."""
    data, counts = report["data"], report["data"]["counts"]
    lines = [f"# {report['documents']}", "", *_data(report), ""]
    lines += ["## Before training", "", _read_on(report["model"]), ""]
    lines += [_diagnosis(report["diagnosis"]), ""]
    lines += [f"- {line}" for line in report["diagnosis"]["words"]]
    lines += [
        "",
        "## Results",
        "",
        f"Test split, {counts['test_queries']} held-out questions:",
        "",
        _results(steps),
        "",
        "![results](report.png)",
        "",
    ]
    lines += [f"- {line}" for line in _remarks(data, counts, steps)]
    lines += ["", "## How it was trained", ""]
    lines += [f"- {line}" for line in report["plan"]]
    for stage in report["recipe"]["stages"]:
        lines.append(
            f"- {stage['name']}: {_said(stage['objective'])}; {stage['training']['max_steps']} steps of "
            f"{stage['batch']['size'] if stage['batch'] else stage['training']['per_device_train_batch_size']}"
        )
    lines += ["", "## Next steps", "", "```bash"]
    lines += [
        "embrew train recipe.yaml --output more stages.learn.training.max_steps=1000   # train with other settings"
    ]
    lines += ["embrew search model --index index --build data/test                           # search the documents"]
    lines += ["embrew data mine model data/pairs.jsonl mined.jsonl                           # mine hard negatives"]
    lines += ["```", ""]
    if exported:
        lengths = report["recipe"]["encoder"]["max_length"]
        lines += [
            '`export/` opens with `SentenceTransformer("export")`, without embrew. It truncates every text at '
            f"{max(lengths.values())} tokens; `model` truncates queries at {lengths['query']} and documents at "
            f"{lengths['document']}.",
            "",
        ]
    return "\n".join(lines)


def _read_on(model: str) -> str:
    return f"{model} with mean pooling, on pairs of the test split (and on general text, if given):"


def _data(report: Mapping[str, Any]) -> list[str]:
    data, counts = report["data"], report["data"]["counts"]
    lines = [
        f"- {counts['documents']} documents, {counts['passages']} passages; {counts['documents_held_out']} held out",
    ]
    if data["questions_made"]:
        lines.append(
            f"- no pairs were given: {counts['test_queries']} questions are first sentences of held-out passages, "
            "whose answers are the rest of the passage. Use them to compare training steps; real questions differ"
        )
        if not data["by_document"]:
            lines.append("- there is a single document: the last fifth of its passages is held out")
        return [*lines, *_checked(data, counts)]
    lines.append(
        f"- {counts['pairs']} different pairs ({counts['with_negatives']} with wrong choices or negatives), "
        f"{counts['linked']} of a known document: {counts['train_pairs']} to train on, {counts['test_queries']} "
        f"questions held out for the test, {counts.get('dev_queries', 0)} for choices during training"
    )
    for answer, by_split in list(data.get("classes", {}).items())[:MOST_CLASSES]:
        divided = ", ".join(f"{count} in {split}" for split, count in by_split.items())
        lines.append(f"- pairs with the answer {answer!r}: {divided}")
    if data["by_document"]:
        lines.append(f"- held-out pairs share no question, {LONG} or known document with training pairs")
    else:
        lines.append(
            f"- the pairs are from too few documents to hold documents out: held-out pairs share no question, {LONG} "
            "or passage that holds one of them with the training data. They may share documents."
        )
    return [*lines, *_checked(data, counts)]


def _checked(data: Mapping[str, Any], counts: Mapping[str, Any]) -> list[str]:
    """Return lines on what was removed from the training data, and on the check of its files."""
    found = data["checked"]
    return [
        f"- removed from the training data: {counts['passages_with_question']} passages that hold a held-out "
        f"question or a part of one, {counts['passages_with_answer']} that hold an answer, "
        f"{counts['pairs_dropped']} pairs, {counts['negatives_dropped']} negatives",
        f"- {found['questions']} held-out questions and {found['answers']} answers of {IDENTITY} words or more were "
        "searched in the "
        f"{found['texts']} training texts: {found['remaining']} were found, whole or in part",
    ]


def _diagnosis(diagnosis: Mapping[str, Any]) -> str:
    header = [
        "",
        "pairs",
        "d′",
        "95 % interval",
        "separation ratio",
        "own answer is nearest",
        "perplexity",
        "bits per byte",
    ]
    rows = []
    for entry in diagnosis["data"]:
        apart, surprise = entry["separation"] or {}, entry["perplexity"] or {}
        rows.append(
            [
                entry["data"],
                str(apart.get("pairs", "–")),
                _number(apart.get("d_prime")),
                _between(apart.get("d_prime_interval")),
                _number(apart.get("separation_ratio")),
                "–" if not apart else f"{apart['nearest_is_own']:.1%}",
                _number(surprise.get("perplexity"), 1),
                _number(surprise.get("bits_per_byte"), 3),
            ]
        )
    return as_markdown(header, rows).rstrip()


def _results(steps: Sequence[Step]) -> str:
    header = ["", *SCORES.values(), "d′", "training"]
    rows = []
    for step in steps:
        scores = [f"{step.result.scores[key]:.3f}" for key in SCORES]
        d_prime = None if step.separation is None else step.separation.d_prime
        rows.append([step.name, *scores, _number(d_prime), "–" if step.seconds is None else f"{step.seconds:.0f} s"])
    return as_markdown(header, rows).rstrip()


def _remarks(data: Mapping[str, Any], counts: Mapping[str, Any], steps: Sequence[Step]) -> list[str]:
    """Return remarks on the table of results; `report.inputs` chooses the same base for the HTML page."""
    untrained = [step for step in steps if step.seconds is None]
    best, last = max(untrained, key=lambda step: (step.result.main_score, step.name)), steps[-1]
    lines = []
    tested = compare(best.result, last.result)
    if tested is not None:
        lines.append(
            f"nDCG@10 after {last.name} minus that of the best untrained pooling (chosen on these same questions, "
            "which favours it): "
            f"{last.result.main_score - best.result.main_score:+.3f}, 95 % interval "
            f"[{tested.low:+.3f}, {tested.high:+.3f}] over questions"
        )
    lines.append(
        f"{counts['test_queries']} held-out questions are searched in {counts['test_documents']} texts: right answers, "
        f"wrong choices, other answers and passages; {counts['test_trained_distractors']} of them were trained on"
    )
    if counts["test_queries"] < FEW_QUERIES:
        lines.append(f"{counts['test_queries']} questions are few: rely on the interval, not on the difference")
    if last.result.main_score < best.result.main_score:
        lines.append(
            "**training has not improved the score**: try more data, more steps, or another model; see the diagnosis"
        )
    return lines


def _said(objective: Mapping[str, Any]) -> str:
    match objective.get("target"):
        case "positive":
            return "answers through the bottleneck (SFT)"
        case "text":
            return "documents reconstructed through the bottleneck (PT)"
        case "rest":
            return "the rest of documents through the bottleneck (PT)"
    return str(objective["type"])


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _between(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"[{interval[0]:.2f}, {interval[1]:.2f}]"


def plot_report(steps: Sequence[Step], path: Path) -> None:
    """Draw the scores of every step as bars, and cosines before and after training."""
    apart = [step for step in steps if step.separation is not None]
    with drawing(path, 12, 0.5 * len(steps) + 2.6) as figure:
        left, *panels = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        drawn = {SCORES[key]: [step.result.scores[key] for step in steps] for key in ("ndcg_at_10", "recall_at_10")}
        draw_bars(left, [step.name for step in steps], drawn)
        left.set_xlabel("score on held-out questions")
        for axes, step in zip(panels, (apart[0], apart[-1]), strict=True):
            assert step.separation is not None
            draw_separation(axes, step.separation)
            axes.set_title(f"{step.name}: d′ {step.separation.d_prime:.2f}")
        panels[1].set_ylabel("")
        panels[0].legend()
