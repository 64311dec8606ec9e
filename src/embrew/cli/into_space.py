"""`embrew into-space`: a student that encodes queries for an index of another model's vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from embrew.cli.arguments import AsJson, Output, Overrides, Quiet
from embrew.cli.console import out, plain_table, print_json
from embrew.cli.options import options_of
from embrew.cli.signals import stopping
from embrew.inspection import command


@options_of(
    "embrew.adapting.space:train_into_space",
    "teacher",
    "queries",
    "judged",
    layers=typer.Option(min=1),
    minutes=typer.Option(min=0.01),
    seed=typer.Option(min=0),
)
def into_space(
    model: str,
    overrides: Overrides = None,
    *,
    index: str,
    output: Output = Path("student"),
    as_json: AsJson = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Train a model to encode queries for another model's index.

    The index stays as it is. The table compares the student with its teacher on held-out queries, by number of layers
    and of dimensions. The same command resumes a run that was stopped.

    Args:
        model: Model to train: a causal language model, or a BERT-type encoder such as the teacher itself, of which
            --layers trains the first layers.
        teacher (MODEL): Embedding model that made the index: folder or Hub id of a Sentence-Transformers model, or
            folder that embrew trained.
        queries (FILE): Texts of queries, without labels: file, folder or Hub id; or '{path: FILE, columns: {text: …}}'.
        judged (DIR): BEIR folder whose test queries have judgements of the index's documents; they are held out.
            Without it, a fifth of the queries is held out.
        layers (N): Number of layers to train at; repeatable. All layers by default.
        index (DIR): Index of embrew search, or vectors of embrew encode. It is read and not changed.
        output (DIR): Folder for queries, recipe, vectors and the model.
    """
    from embrew.adapting import train_into_space

    with stopping(lambda: f"finished parts are in {output}; the same command resumes"):
        report = train_into_space(model, index=index, output=output, overrides=overrides or (), **options)
    has_scores = report["queries"]["judged"]
    names = ("", "layers", "dimensions", "of its top 10", *(["nDCG@10"] if has_scores else []), "ms per query")
    table = plain_table(names)
    for row in report["rows"]:
        cells = [row["model"], "–" if row["layers"] is None else str(row["layers"]), str(row["dimensions"])]
        scores = [row["recall_of_teacher_at_10"], *([row["ndcg_at_10"]] if has_scores else [])]
        table.add_row(*cells, *(f"{100 * score:.1f}" for score in scores), f"{1000 * row['seconds_per_query']:.1f}")
    out().print(table)
    folder = output / report["encoder"]
    search = command("search", folder, "--index", index)
    out().print(f"encoder: [bold]{escape(str(folder))}[/]; {escape(search)}", soft_wrap=True)
    print_json(report)
