"""`embrew adapt`: models raced on a user's data. `embrew into-space`: a student for an index of another model."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from embrew.cli.arguments import Columns, Output, Overrides, columns_of
from embrew.cli.console import Record, print_line, print_table
from embrew.cli.options import options_of
from embrew.cli.signals import stopping
from embrew.inspection import command

if TYPE_CHECKING:
    from embrew.adapting.outcome import Scores

METHODS = ("none", "llm2comp", "ese", "autoregembed", "lbr", "epic", "distillation")


@options_of(
    "embrew.adapting.run:adapt",
    "pairs",
    "as_is",
    "teacher",
    "writer",
    "quick",
    "export",
    documents=typer.Option("--docs"),
    method=typer.Option(autocompletion=lambda: list(METHODS)),
    minutes=typer.Option(min=0.01),
    seed=typer.Option(min=0),
)
def adapt(
    models: list[str] | None = None,
    *,
    output: Output = Path("adapted"),
    column: Columns = None,
    **options: Any,
) -> Record:
    """Race models on your texts, and export the best.

    Each is scored on held-out questions as it is, then trained for --minutes and scored again, beside BM25; --method
    adds a method for language models. The same command resumes a run that was stopped, and a further MODEL joins it.

    Args:
        models ([MODEL]... [KEY=VALUE]...): Models: folder, Hub id or GGUF file of a causal language model;
            Sentence-Transformers model; encoder, export or output folder of embrew; smollm2-135m, nano. Without any,
            those of embrew's list that fit this machine and --minutes. After them settings of the recipes, e.g.
            encoder.lora.r=32, or defaults, e.g. adapt.max_chars=300.
        pairs (FILE): Pairs of texts: file, folder or Hub id in any form that training reads; or '{path: FILE, where:
            …}'.
        documents (DIR): Folder of .txt, .md, .html, .jsonl or .pdf files, file of rows, or Hub id.
        output (DIR): Folder for data, models, results, page and export.
        as_is (MODEL): A further model, which is scored and not trained.
        method (METHOD): Method to train beside contrastive learning, for as long: llm2comp, ese, autoregembed, lbr,
            epic, distillation, or none.
        teacher (MODEL): Embedding model whose vectors are learned (method distillation): folder or Hub id of a
            Sentence-Transformers model, or folder that embrew trained.
        writer (MODEL|URL): Writes questions of the documents where there are fewer than 64 pairs: language model,
            folder trained by questions/smollm2, or http://HOST/v1#MODEL (see embrew questions).
    """
    from embrew.adapting import adapt as run

    names, overrides = _parted(models or ())
    with stopping(lambda: f"finished parts are in {output}; the same command resumes"):
        report = run(names, output=output, columns=columns_of(column), overrides=overrides, on_scores=_show, **options)
    written = {"page": "report.html", "encoder": report["encoder"]}
    written["export, for Sentence-Transformers"] = report["exported"]
    for description, name in written.items():
        if name and (output / name).exists():
            print_line(f"{description}: ", (str(output / name), "bold"))
    return {**report}


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return models and settings; a word with `=` is a setting, unless there is a file or folder of that name."""
    settings = [word for word in words if re.match(r"[\w.-]+=", word) and not os.path.lexists(word)]
    return [word for word in words if word not in settings], settings


def _show(scores: Scores) -> None:
    """Print the sentences and the table of models."""
    for line in scores["advice"]:
        print_line(line)
    rows = []
    for row in scores["models"]:
        low, high = (100 * bound for bound in row["test_interval"])
        dev, test = (100 * row[key] for key in ("dev_ndcg_at_10", "test_ndcg_at_10"))
        training = "–" if row["seconds"] is None else f"{row['seconds'] / 60:.1f} min"
        if row["kept_step"] == 0:
            training += ", not better on dev"
        cost = "–" if row["milliseconds"] is None else f"{row['milliseconds']:.1f}"
        cells = [row["model"], f"{dev:.1f}", f"{test:.1f} ({low:.1f} to {high:.1f})", cost, training]
        rows.append([Text(cell, "bold" if row["model"] == scores["best"] else "") for cell in cells])
    print_table(["", "dev nDCG@10", "test nDCG@10 (95 %)", "ms per text", "training"], rows)


@options_of(
    "embrew.adapting.space:train_into_space",
    "teacher",
    "queries",
    "index",
    "judged",
    layers=typer.Option(min=1),
    minutes=typer.Option(min=0.01),
    seed=typer.Option(min=0),
)
def into_space(model: str, overrides: Overrides = None, *, output: Output = Path("student"), **options: Any) -> Record:
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
        report = train_into_space(model, output=output, overrides=overrides or (), **options)
    scores = {
        "of its top 10": "recall_of_teacher_at_10",
        **({"nDCG@10": "ndcg_at_10"} if report["queries"]["judged"] else {}),
    }
    rows = [
        (
            row["model"],
            "–" if row["layers"] is None else str(row["layers"]),
            str(row["dimensions"]),
            *(f"{100 * row[key]:.1f}" for key in scores.values()),  # type: ignore[literal-required]
            f"{1000 * row['seconds_per_query']:.1f}",
        )
        for row in report["rows"]
    ]
    print_table(("", "layers", "dimensions", *scores, "ms per query"), rows)
    folder = output / report["encoder"]
    print_line("encoder: ", (str(folder), "bold"), f"; {command('search', folder, '--index', options['index'])}")
    return {**report}
