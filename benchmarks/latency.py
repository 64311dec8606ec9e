"""Score against time: `python benchmarks/latency.py PLAN.yaml`, one point a method.

A row of the plan is a trained model, or a recipe as it is, with the prompt or context that its queries get. All rows
embed the same queries and passages, one batch size for all, in turn, and the median over rounds counts. Time and tokens
are per query–passage pair for retrieval, as EPIC's paper reports them, else per text. Prompts and contexts are kept
between calls, as in use.

Keys of a plan:
    title: of the page.
    data: a data folder (`$NAME` is replaced from the environment), whose test split is embedded and scored.
    settings: of its task, such as `documents: judged`.
    texts: how many queries and as many documents, or how many texts, are timed.
    batch_size, rounds: of the timing.
    rows: `row`, its name; `model`, a folder, Hub id or recipe; `set`, settings of a recipe; `max_length`,
        tokens of a text with its template; `context`, a context of the model; `instruction`, words before texts and
        queries; `shots`: so many demonstrations, of the data's training rows, are put before them too.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
from matplotlib.ticker import LogLocator
from planned import expand, parser_of, read_plan
from report import circumstances, origin, table
from shots import candidates

from embrew import opening
from embrew.analysis.plots import drawing
from embrew.data.beir import read_beir
from embrew.evaluation import evaluate, find_task
from embrew.evaluation.dev import dev_sets
from embrew.files.writing import atomic_path, write_json
from embrew.model.contexts import Context, insert
from embrew.plot_style import colours

KEYS = ("title", "data", "settings", "texts", "batch_size", "rounds", "rows")
ROW_KEYS = ("row", "model", "set", "max_length", "context", "instruction", "shots")


@dataclass
class Point:
    """One method: its score, and what a query–passage pair (or a text) takes."""

    row: str
    score: float
    milliseconds: float
    low: float
    high: float
    tokens: float
    computed: float


def main() -> None:
    """Run a plan; write the table, the figures and the picture."""
    arguments = parser_of(__doc__).parse_args()
    plan = read_plan(arguments.plan, KEYS, ROW_KEYS)
    harness.one_core()
    points = measure(plan)
    write(arguments.plan, plan, points, arguments.output)


def measure(plan: dict[str, Any]) -> list[Point]:
    """Score every row, then time all of them in turn."""
    task = find_task(expand(plan["data"]), **plan.get("settings", {}))
    sides = sides_of(task, plan["texts"])
    pairs = min(map(len, sides.values()))
    opened = [prepared(entry, Path(task.path).name) for entry in plan["rows"]]
    scores, runs, counts = [], [], []
    for entry, (encoder, prompt) in zip(plan["rows"], opened, strict=True):
        settings = {"instruction": prompt["prompt"]} if "prompt" in prompt else {}
        judged = find_task(expand(plan["data"]), **plan.get("settings", {}), **settings)
        (result,) = evaluate(encoder, [judged], context=prompt.get("prompt_name"), batch_tokens=2048)
        scores.append(result.main_score)
        runs.append(lambda encoder=encoder, prompt=prompt: embed(encoder, sides, prompt, plan["batch_size"]))
        counts.append(tokens_of(encoder, sides, prompt))
        print(f"{entry['row']}: {result.main_score:.4f}", flush=True)
    taken: list[list[float]] = [[] for _ in runs]
    for number in range(plan["rounds"] + 1):
        for seconds, run in zip(taken, runs, strict=True):
            found = harness.sample(run).wall
            if number:  # the first warms up
                seconds.append(1e3 * found / pairs)
    return [
        Point(entry["row"], score, statistics.median(ms), min(ms), max(ms), whole / pairs, new / pairs)
        for entry, score, ms, (whole, new) in zip(plan["rows"], scores, taken, counts, strict=True)
    ]


def prepared(entry: dict[str, Any], data: str) -> tuple[Any, dict[str, str]]:
    """A row's encoder, and the prompt of its texts and queries."""
    encoder: Any = opening.open_model(expand(entry["model"]), [expand(one) for one in entry.get("set", [])])
    if "max_length" in entry:
        encoder = encoder.with_settings(max_length=entry["max_length"])
    if entry.get("shots"):
        context = Context(entry.get("instruction", ""), candidates(data)[: entry["shots"]])
        encoder.add_context("demonstrated", context)
        return encoder, {"prompt_name": "demonstrated"}
    if "context" in entry:
        return encoder, {"prompt_name": entry["context"]}
    return encoder, {"prompt": entry["instruction"]} if "instruction" in entry else {}


def sides_of(task: Any, count: int) -> dict[str, list[str]]:
    """Queries and documents, or texts alone: the first of the test split."""
    if task.kind == "retrieval":
        data = read_beir(task.path, task.split)
        return {
            "query": list(data.queries.values())[:count],
            "document": [document.content for document in data.corpus if document.content][:count],
        }
    (texts,) = dev_sets([task.path]).texts().values()
    return {"text": list(dict.fromkeys(texts))[:count]}


def embed(encoder: Any, sides: dict[str, list[str]], prompt: dict[str, str], batch_size: int) -> None:
    """All sides once; documents without the prompt."""
    for side, texts in sides.items():
        encode = {"query": encoder.encode_query, "document": encoder.encode_document, "text": encoder.encode}[side]
        encode(texts, batch_size=batch_size, show_progress_bar=False, **({} if side == "document" else prompt))


def tokens_of(encoder: Any, sides: dict[str, list[str]], prompt: dict[str, str]) -> tuple[int, int]:
    """Tokens of all rows, templates together; and those that are computed where a beginning is computed once."""
    from embrew.model.prefix import shared_prefix

    whole = new = 0
    for side, texts in sides.items():
        given = {} if side == "document" else prompt
        name = given.get("prompt_name") or (None if "prompt" in given or side == "text" else side)
        words = given.get("prompt")
        instruction, context = encoder.resolve_prompt(name, words)
        limit = encoder.max_length.get(side, encoder.max_seq_length)
        for template in encoder.templates:
            rows = template.rows(texts, instruction=instruction, max_length=limit)
            rows = rows if context is None else insert(rows, context.row, template)
            lengths = np.array([len(row.ids) for row in rows])
            shared = shared_prefix(rows) if encoder.attention.is_causal else 0
            whole += int(lengths.sum())
            new += int((lengths - shared).sum())
    return whole, new


def write(plan_file: Path, plan: dict[str, Any], points: list[Point], folder: Path) -> None:
    """One Markdown and one JSON file, and one picture."""
    unit = "query–passage pair" if find_task(expand(plan["data"])).kind == "retrieval" else "text"
    around = circumstances(f"python benchmarks/latency.py benchmarks/plans/{plan_file.name}")
    header = ["method", "score", f"ms per {unit}", "min to max", f"tokens per {unit}", "of them computed"]
    rows = [
        [
            point.row,
            f"{100 * point.score:.2f}",
            f"{point.milliseconds:.2f}",
            f"{point.low:.2f} to {point.high:.2f}",
            f"{point.tokens:.1f}",
            f"{point.computed:.1f}",
        ]
        for point in points
    ]
    name = plan_file.stem
    picture = f"![score against time]({name}.svg)"
    page = [f"# {plan['title']}", "", *table(header, rows), "", picture, "", *origin(around)]
    with atomic_path(folder / f"{name}.md") as temporary:
        temporary.write_text("\n".join(page) + "\n", encoding="utf-8")
    write_json(folder / f"{name}.json", {"plan": plan, "points": [vars(point) for point in points], **around})
    draw(points, unit, folder / f"{name}.svg")


def draw(points: list[Point], unit: str, path: Path) -> None:
    """Score against time; a label goes below its point where one above it is in the way."""
    spread = max(point.score for point in points) - min(point.score for point in points) or 1.0
    chosen = dict(zip((point.row for point in points), colours([point.row for point in points]), strict=True))
    above: list[Point] = []
    with drawing(path, 8, 6.4) as figure:
        axes = figure.subplots()
        for point in sorted(points, key=lambda point: point.milliseconds):
            axes.plot(point.milliseconds, 100 * point.score, "o", color=chosen[point.row])
            below = any(
                abs(point.score - other.score) < 0.05 * spread and point.milliseconds < 3 * other.milliseconds
                for other in above
            )
            above += [] if below else [point]
            text = f"{point.row} ({point.tokens:.0f})"
            place = (6, -14 if below else 5)
            axes.annotate(text, (point.milliseconds, 100 * point.score), place, textcoords="offset points")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.margins(0.15)
        axes.set_xlabel(f"ms per {unit} (tokens in brackets)")
        axes.set_ylabel("score × 100")


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(json.dumps({"seconds": round(time.perf_counter() - started)}))
