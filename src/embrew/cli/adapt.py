"""`embrew adapt`: models raced on a user's pairs or documents; the best is exported."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from embrew.cli.analyze.domain import Columns, columns_of
from embrew.cli.arguments import AsJson, Quiet
from embrew.cli.console import out, plain_table, print_json, say
from embrew.cli.signals import stopping

METHODS = ("none", "llm2comp", "ese", "autoregembed", "lbr", "epic", "distillation")


def adapt(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]... [KEY=VALUE]...",
            help="Models: folder, Hub id or GGUF file of a causal language model; Sentence-Transformers model; "
            "encoder, export or output folder of embrew; smollm2-135m, nano. Without any, those of embrew's list that "
            "fit this machine and --minutes. After them settings of the recipes, e.g. "
            "encoder.lora.r=32, or defaults, e.g. adapt.max_chars=300.",
        ),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Pairs of texts: file, folder or Hub id in any form that training reads; or '{path: FILE, where: …}'.",
        ),
    ] = None,
    docs: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Documents: folder of .txt, .md, .html, .jsonl or .pdf files, file of rows, or Hub id."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for data, models, results, page and export.")
    ] = Path("adapted"),
    as_is: Annotated[
        list[str] | None,
        typer.Option("--as-is", metavar="MODEL", help="A further model, which is scored and not trained."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            autocompletion=lambda: list(METHODS),
            help="Method to train beside contrastive learning, for as long: llm2comp, ese, autoregembed, lbr, epic, "
            "distillation, or none.",
        ),
    ] = "none",
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Embedding model whose vectors are learned (method distillation): folder or Hub id of a "
            "Sentence-Transformers model, or folder that embrew trained.",
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Minutes of training, for each trained model; 30 by default.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run every part in a few minutes, too short to compare methods.")
    ] = False,
    column: Columns = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the split and of training.")] = 42,
    export: Annotated[bool, typer.Option(help="Also export the best encoder for Sentence-Transformers.")] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Race models on your texts, and export the best.

    Each is scored on held-out questions as it is, then trained for --minutes and scored again, beside BM25; --method
    adds a method for language models. The same command resumes a run that was stopped, and a further MODEL joins it.
    """
    from embrew.adapting import adapt as run

    given, overrides = _parted(models or ())
    options: dict[str, Any] = {"pairs": pairs, "documents": docs, "columns": columns_of(column), "method": method}
    with stopping(lambda: f"finished parts are in {output}; the same command resumes"):
        report = run(
            given,
            as_is=as_is or (),
            output=output,
            teacher=teacher,
            minutes=minutes,
            quick=quick,
            seed=seed,
            export=export,
            overrides=overrides,
            **options,
        )
    _show(report, output)
    print_json(report)


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return models and settings; a word with `=` is a setting, unless there is a file or folder of that name."""
    settings = [word for word in words if re.match(r"[\w.-]+=", word) and not os.path.lexists(word)]
    return [word for word in words if word not in settings], settings


def _show(report: dict[str, Any], output: Path) -> None:
    """Print the sentences, the table of models, and where the results are."""
    console = out()
    for line in report["advice"]:
        say(line)
    table = plain_table(["", "dev nDCG@10", "test nDCG@10 (95 %)", "ms a text", "training"])
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
    places = {"page": output / "report.html"}
    if report["encoder"]:
        places["encoder"] = output / report["encoder"]
    if report["exported"]:
        places["export, for Sentence-Transformers"] = output / report["exported"]
    for what, place in places.items():
        if place.exists():
            console.print(f"{what}: [bold]{escape(str(place))}[/]", soft_wrap=True)
