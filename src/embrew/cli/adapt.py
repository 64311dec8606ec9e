"""`embrew adapt`: models raced on a user's pairs or documents; the best is exported."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from embrew.cli.arguments import AsJson, Columns, Output, Quiet, columns_of
from embrew.cli.console import out, plain_table, print_json, print_line
from embrew.cli.options import options_of
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.adapting.outcome import AdaptReport

METHODS = ("none", "llm2comp", "ese", "autoregembed", "lbr", "epic", "distillation")


@options_of(
    "embrew.adapting.run:adapt",
    "pairs",
    "as_is",
    "teacher",
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
    as_json: AsJson = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
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
    """
    from embrew.adapting import adapt as run

    names, overrides = _parted(models or ())
    with stopping(lambda: f"finished parts are in {output}; the same command resumes"):
        report = run(names, output=output, columns=columns_of(column), overrides=overrides, **options)
    _show(report, output)
    print_json(report)


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return models and settings; a word with `=` is a setting, unless there is a file or folder of that name."""
    settings = [word for word in words if re.match(r"[\w.-]+=", word) and not os.path.lexists(word)]
    return [word for word in words if word not in settings], settings


def _show(report: AdaptReport, output: Path) -> None:
    """Print the sentences, the table of models, and where the results are."""
    console = out()
    for line in report["advice"]:
        print_line(line)
    table = plain_table(["", "dev nDCG@10", "test nDCG@10 (95 %)", "ms per text", "training"])
    for row in report["models"]:
        low, high = (100 * bound for bound in row["test_interval"])
        dev, test = (100 * row[key] for key in ("dev_ndcg_at_10", "test_ndcg_at_10"))
        training = "–" if row["seconds"] is None else f"{row['seconds'] / 60:.1f} min"
        if row["kept_step"] == 0:
            training += ", not better on dev"
        cost = "–" if row["milliseconds"] is None else f"{row['milliseconds']:.1f}"
        cells = [f"{dev:.1f}", f"{test:.1f} ({low:.1f} to {high:.1f})", cost, training]
        table.add_row(escape(row["model"]), *cells, style="bold" if row["model"] == report["best"] else None)
    console.print(table)
    written = {"page": output / "report.html"}
    if report["encoder"]:
        written["encoder"] = output / report["encoder"]
    if report["exported"]:
        written["export, for Sentence-Transformers"] = output / report["exported"]
    for description, path in written.items():
        if path.exists():
            console.print(f"{description}: [bold]{escape(str(path))}[/]", soft_wrap=True)
