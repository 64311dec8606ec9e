"""The demonstration: a causal LM becomes a search engine for Python documentation, on this machine, offline.

`python -m embrew.demo --output runs/demo` collects the documentation of the Python packages installed here, trains
LLM2Comp on it (compress, unsupervised, supervised), scores every step on packages it has never seen, exports the
result and searches with it. Stopped runs go on when the command is given again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from embrew.harvest import harvest

BASELINES = {"last token": "baselines/last-token", "mean": "baselines/mean"}
QUESTIONS = (
    "How do I find the shortest path between two nodes?",
    "split data into training and test sets",
    "print text in colour on a terminal",
)
"""Asked of the test packages' documentation (networkx, scikit-learn, rich, pydantic, fsspec)."""

logger = logging.getLogger(__name__)


def run(output: Path, recipe_name: str = "llm2comp/nano", overrides: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The whole demonstration in one folder.

    Writes `data/` (the harvest), `model/` (the stages), `export/` (Sentence-Transformers), `index/`, `results/`,
    `table.md`, `scores.png`.

    Returns:
        The rows of the table.
    """
    from embrew import build
    from embrew.evaluation import evaluate
    from embrew.evaluation.report import size_of
    from embrew.export.sentence_transformers import export_sentence_transformer
    from embrew.modeling.encoder import Encoder
    from embrew.recipe import Recipe
    from embrew.search import SearchIndex
    from embrew.training.stages import train

    console = Console(highlight=False)
    data = output / "data"
    if not data.exists():
        console.print("[bold]1. Data[/]: the documentation of the Python packages installed here")
        harvest(data)
    counts = json.loads((data / "manifest.json").read_text())
    console.print(
        f"   {_total(counts, 'train')} documents to train on, {_total(counts, 'test')} of other packages to be judged "
        f"on ({', '.join(counts['test']['packages'])})"
    )
    os.environ["EMBREW_DEMO"] = str(data.resolve())
    recipe = Recipe.load(recipe_name, overrides)
    test = data / "test"
    lengths = recipe.encoder.max_length
    same_lengths = [f"encoder.max_length.query={lengths.query}", f"encoder.max_length.document={lengths.document}"]

    counted: list[Mapping[str, int]] = []

    def score(encoder: Encoder, name: str) -> dict[str, float]:
        (result,) = evaluate(encoder, [test], output_dir=output / "results" / name, batch_tokens=4096)
        counted[:] = [result.counts]
        return result.scores

    rows = []
    console.print("[bold]2. Before[/]: the untrained model, two ways to read a vector off it")
    for label, name in BASELINES.items():
        scores = score(build.encoder(Recipe.load(name, same_lengths)), label.replace(" ", "-"))
        rows.append({"step": f"{recipe.encoder.model}, {label}", "seconds": None, **_figures(scores)})
    console.print(f"[bold]3. Training[/]: {recipe_name}, stage by stage")

    def dev(encoder: Encoder) -> dict[str, float]:
        (result,) = evaluate(encoder, [data / "dev"], batch_tokens=4096)
        return {"dev": result.main_score}

    encoder = train(recipe, output / "model", resume=(output / "model").exists(), evaluate=dev)
    run_log = json.loads((output / "model" / "run.json").read_text())
    console.print("[bold]4. After[/]: each stage on the unseen packages")
    for stage in recipe.stages:
        scores = score(Encoder.from_pretrained(output / "model" / stage.name), stage.name)
        rows.append({"step": f"LLM2Comp: {stage.name}", "seconds": run_log["seconds"][stage.name], **_figures(scores)})
    judged = f"Test split: {size_of(counted[0])} of packages that were not trained on"
    _show(rows, console, judged)
    (output / "table.md").write_text(markdown(rows, judged))
    plot(rows, output / "scores.png")
    console.print("[bold]5. Export[/]: a stock Sentence-Transformers folder, proven in a fresh process")
    export_sentence_transformer(encoder, output / "export", overwrite=True, max_length=encoder.max_seq_length)
    console.print("[bold]6. Search[/] in the unseen packages")
    index = SearchIndex.build(encoder, test, batch_tokens=4096)
    index.save(output / "index", overwrite=True)
    for question, hits in zip(QUESTIONS, index.search(QUESTIONS, top_k=3), strict=True):
        console.print(f"\n  [bold cyan]{question}[/]")
        for hit in hits:
            text = hit.document.content
            console.print(f"    {hit.score:.2f}  [bold]{_first_line(text)}[/]  {escape(_rest(text))}", soft_wrap=False)
    console.print(f'\nYour own question:\n  embrew search {output / "model"} --index {output / "index"} "…"')
    console.print(
        f"Table: {output / 'table.md'}   plot: {output / 'scores.png'}   model for any tool: {output / 'export'}"
    )
    return rows


def _total(counts: dict[str, Any], part: str) -> int:
    return sum(package["documents"] for package in counts[part]["packages"].values())


def _figures(scores: dict[str, float]) -> dict[str, float]:
    return {"ndcg_at_10": scores["ndcg_at_10"], "recall_at_10": scores["recall_at_10"]}


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _rest(text: str, width: int = 90) -> str:
    rest = " ".join(text.partition("\n")[2].split())
    return rest if len(rest) <= width else rest[:width].rsplit(" ", 1)[0] + " …"


def markdown(rows: list[dict[str, Any]], judged: str) -> str:
    """The table as Markdown, under what it is of."""
    lines = [f"{judged}.", "", "| | nDCG@10 | Recall@10 | training |", "|---|---|---|---|"]
    for row in rows:
        seconds = "–" if row["seconds"] is None else f"{row['seconds']:.0f} s"
        lines.append(f"| {row['step']} | {row['ndcg_at_10']:.3f} | {row['recall_at_10']:.3f} | {seconds} |")
    return "\n".join(lines) + "\n"


def _show(rows: list[dict[str, Any]], console: Console, judged: str) -> None:
    table = Table(title=f"Retrieval. {judged}")
    for name in ("", "nDCG@10", "Recall@10", "training"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        seconds = "–" if row["seconds"] is None else f"{row['seconds']:.0f} s"
        table.add_row(row["step"], f"{row['ndcg_at_10']:.3f}", f"{row['recall_at_10']:.3f}", seconds)
    console.print(table)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Both scores of every step as horizontal bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [row["step"] for row in rows]
    places = range(len(rows))
    figure, axes = pyplot.subplots(figsize=(8, 0.7 * len(rows) + 1.2), layout="constrained")
    for shift, (key, label, colour) in zip(
        (-0.2, 0.2), (("ndcg_at_10", "nDCG@10", "#2f6f8f"), ("recall_at_10", "Recall@10", "#d98c3f")), strict=True
    ):
        bars = axes.barh(
            [p + shift for p in places], [row[key] for row in rows], height=0.38, label=label, color=colour
        )
        axes.bar_label(bars, fmt="%.3f", padding=3, fontsize=9)
    axes.set_yticks(list(places), steps)
    axes.invert_yaxis()
    axes.set_xlim(0, min(1.0, max(row["recall_at_10"] for row in rows) * 1.15 + 0.02))
    axes.set_xlabel("score on the documentation of unseen packages")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/demo"))
    parser.add_argument("--recipe", default="llm2comp/nano")
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier run left in the folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe")
    arguments = parser.parse_args()
    logging.getLogger("embrew").setLevel(logging.INFO)
    logging.getLogger("embrew").addHandler(RichHandler(show_time=False, show_level=False, show_path=False))
    if arguments.fresh:
        shutil.rmtree(arguments.output, ignore_errors=True)
    began = time.perf_counter()
    run(arguments.output, arguments.recipe, tuple(arguments.overrides))
    Console().print(f"{(time.perf_counter() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
