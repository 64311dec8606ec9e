"""`embrew adapt`: an encoder from a language model and a user's pairs or documents, compared and exported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from embrew.cli.analyze.domain import Columns, columns_of
from embrew.cli.arguments import AsJson, Quiet
from embrew.cli.console import out, plain_table, print_json, say
from embrew.cli.signals import stopping
from embrew.inspection import command

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
    into_space: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Instead: encode queries as this embedding model does, for --index, which it made and which stays.",
        ),
    ] = None,
    queries: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --into-space: texts of queries, without labels.")
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="With --into-space: index of embrew search, or vectors of embrew encode."),
    ] = None,
    judged: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="With --into-space: BEIR folder with test queries for the documents of DIR."),
    ] = None,
    layers: Annotated[
        list[int] | None,
        typer.Option(min=1, help="With --into-space: a number of layers to train; several may be given."),
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
    of_space = {"queries": queries, "index": index, "judged": judged, "layers": layers}
    if into_space is not None:
        unfit = {"pairs": pairs, "docs": docs, "teacher": teacher, "quick": quick, "column": column}
        _check_together(into_space, of_space, unfit)
        _into_space(model, into_space, output, minutes, seed, overrides or (), of_space)
        return
    if named := [name for name, value in of_space.items() if value]:
        raise ValueError(f"--{named[0]} goes with --into-space MODEL; add it, or leave --{named[0]} out")
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


def _check_together(into_space: str, needed: dict[str, Any], unfit: dict[str, Any]) -> None:
    """Raise unless the options go with `--into-space`."""
    if wrong := [name for name, value in unfit.items() if value]:
        raise ValueError(f"--{wrong[0]} does not go with --into-space {into_space}, which takes queries and an index")
    if needed["queries"] is None or needed["index"] is None:
        raise ValueError(f"--into-space {into_space} needs --queries FILE and --index DIR")


def _into_space(
    model: str,
    teacher: str,
    output: Path,
    minutes: float | None,
    seed: int,
    overrides: Sequence[str],
    options: dict[str, Any],
) -> None:
    """Train a student of queries, and print its table."""
    from embrew.adapting import adapt_into_space

    with stopping(lambda: f"finished parts are in {output}; the same command resumes"):
        report = adapt_into_space(
            model, teacher=teacher, output=output, minutes=minutes or 30.0, seed=seed, overrides=overrides, **options
        )
    judged = report["queries"]["judged"]
    names = ("", "layers", "dimensions", "of its top 10", *(["nDCG@10"] if judged else []), "ms per query")
    table = plain_table(names)
    for row in report["rows"]:
        cells = [row["model"], "–" if row["layers"] is None else str(row["layers"]), str(row["dimensions"])]
        scores = [row["recall_of_teacher_at_10"], *([row["ndcg_at_10"]] if judged else [])]
        table.add_row(*cells, *(f"{100 * score:.1f}" for score in scores), f"{1000 * row['seconds_per_query']:.1f}")
    out().print(table)
    folder = output / report["encoder"]
    out().print(
        f"encoder: [bold]{escape(str(folder))}[/]; {escape(command('search', folder, '--index', options['index']))}",
        soft_wrap=True,
    )
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
