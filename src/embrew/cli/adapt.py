"""`embrew adapt`: an encoder from a language model and a user's pairs or documents, compared and exported."""

from __future__ import annotations

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
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Causal language model: folder, GGUF file, LoRA adapter, Hub id, smollm2-135m or nano.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Override a setting of the recipes, e.g. encoder.lora.r=32, or a default, e.g. adapt.max_chars=300.",
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
    """Make an encoder of a language model from pairs or documents.

    Compares untrained poolings, BM25, contrastive learning and, with --method, another method on held-out questions.
    The same command resumes a run that was stopped.
    """
    from embrew.adapting import adapt as run

    options: dict[str, Any] = {"pairs": pairs, "documents": docs, "columns": columns_of(column), "method": method}
    with stopping(lambda: f"finished parts are in {output}; the same command resumes"):
        report = run(
            model,
            output=output,
            teacher=teacher,
            minutes=minutes,
            quick=quick,
            seed=seed,
            export=export,
            overrides=overrides or (),
            **options,
        )
    _show(report, output)
    print_json(report)


def _show(report: dict[str, Any], output: Path) -> None:
    """Print the sentences, the table of models, and where the results are."""
    console = out()
    for line in report["said"]:
        say(line)
    table = plain_table(["", "dev nDCG@10", "test nDCG@10", "Recall@10", "training"])
    for row in report["models"]:
        values = [f"{100 * row[key]:.1f}" for key in ("dev_ndcg_at_10", "test_ndcg_at_10", "test_recall_at_10")]
        training = "–" if row["seconds"] is None else f"{row['seconds'] / 60:.1f} min"
        best = row["model"] == report["best"]
        table.add_row(escape(row["model"]), *values, training, style="bold" if best else None)
    console.print(table)
    places = {"page": output / "report.html", "encoder": output / report["encoder"]}
    if report["exported"]:
        places["export, for Sentence-Transformers"] = output / report["exported"]
    for what, place in places.items():
        if place.exists():
            console.print(f"{what}: [bold]{escape(str(place))}[/]", soft_wrap=True)
