"""`embrew encode`: vectors of a corpus, on disk."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from embrew.cli.arguments import Model, ModelBackend, ModelDtype, ModelPooling, Quiet
from embrew.cli.console import loading, out
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.corpus import Summary


Corpus = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="Corpus: a .jsonl, .json, .csv, .tsv, .parquet, .txt, .md or .html file, or a folder of these; a path "
        "or a URL (s3://, gs://, hf://).",
    ),
]
Folder = Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder for the vectors; a path or a URL.")]
Side = Annotated[Literal["query", "document"], typer.Option(help="Prompt and length limit of documents or of queries.")]
Precision = Annotated[
    Literal["float32", "int8", "binary"],
    typer.Option(help="Data type of the stored vectors; int8 needs 1/4 of the bytes of float32, binary 1/32."),
]
TruncateDim = Annotated[int | None, typer.Option(min=1, help="Leading dimensions to keep; default: all.")]
NumLayers = Annotated[int | None, typer.Option(min=1, help="Number of layers to run; default: all.")]
BatchTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens per batch, with padding; default: 16384, on a CPU 2048.")
]
ShardRows = Annotated[int, typer.Option(min=1, help="Rows per shard; a killed run loses at most one.")]
IdColumn = Annotated[str | None, typer.Option(help="Column of the ids; default: _id or id, else the row's number.")]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of the texts; default: text, after title where there is one.")
]
OnBadRows = Annotated[
    Literal["strict", "skip"],
    typer.Option(help="At a row that cannot be encoded: stop, or list it in __embrew__/rejects.jsonl."),
]
MaxRejectRate = Annotated[
    float, typer.Option(min=0, max=1, help="With --on-bad-rows skip: stop above this share of bad rows.")
]
Engine = Annotated[Literal["local", "ray"], typer.Option(help="This process, or all devices of a Ray cluster.")]
Update = Annotated[
    bool,
    typer.Option("--update", help="OUTPUT holds an earlier version of INPUT: keep vectors of texts that it has."),
]


def encode(
    context: typer.Context,
    model: Model,
    corpus: Corpus,
    folder: Folder,
    prompt_name: Side = "document",
    precision: Precision = "float32",
    pooling: ModelPooling = None,
    dtype: ModelDtype = "auto",
    backend: ModelBackend = "torch",
    truncate_dim: TruncateDim = None,
    num_layers: NumLayers = None,
    batch_tokens: BatchTokens = None,
    shard_rows: ShardRows = 32_768,
    id_column: IdColumn = None,
    text_column: TextColumn = None,
    on_bad_rows: OnBadRows = "strict",
    max_reject_rate: MaxRejectRate = 0.01,
    engine: Engine = "local",
    update: Update = False,
    quiet: Quiet = False,
) -> None:
    """Encode a corpus into Parquet shards.

    The same command resumes a run that was stopped.
    """
    if update and engine == "ray":
        raise ValueError("--update works with --engine local only; leave out --engine ray, or encode into a new folder")
    loading(model)
    from embrew.corpus import Job, encode_corpus, read_vectors, update_corpus
    from embrew.corpus.rows import corpus_files
    from embrew.opening import open_model

    settings = {field.name: context.params[field.name] for field in fields(Job) if field.name in context.params}
    job = Job(input=corpus, output=folder, **settings)
    corpus_files(corpus)  # before a model is opened
    if update:
        read_vectors(job.local_folder, partial=True)
    options: Any = {"dtype": dtype, "backend": backend, "pooling": pooling}
    unfinished = f"{folder} is unchanged; vectors encoded so far are kept" if update else "finished shards are kept"
    with stopping(lambda: f"{unfinished}; the same command resumes"):
        if engine == "ray":
            from embrew.corpus.on_ray import encode_corpus_on_ray

            name = str(Path(model).resolve()) if Path(model).exists() else model
            opener: Any = partial(open_model, name, **options)
            summary = encode_corpus_on_ray(opener, corpus, folder, **settings)
        else:
            encoder: Any = open_model(model, **options)
            make = update_corpus if update else encode_corpus
            summary = make(encoder, corpus, folder, show_progress_bar=True, **settings)
    show(summary, folder)


def show(summary: Summary, folder: str) -> None:
    """Print what the folder holds."""
    speed = f", {summary.rows / summary.seconds:,.0f} rows/s" if not summary.kept and not summary.changes else ""
    earlier = f", {summary.kept} of them from an earlier run" if summary.kept else ""
    out().print(
        f"[bold]{escape(folder)}[/]: {summary.rows:,} vectors of {summary.dimensions} dimensions in "
        f"{summary.shards} shards{earlier}, {summary.bytes / 1e6:,.1f} MB, {summary.seconds:.1f} s{speed}",
        soft_wrap=True,
    )
    if summary.changes:
        out().print(str(summary.changes), soft_wrap=True)
    if summary.rejected:
        out().print(f"{summary.rejected} rows left out; they are listed in __embrew__/rejects.jsonl", style="yellow")
