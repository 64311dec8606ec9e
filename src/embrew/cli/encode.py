"""`embrew encode`: vectors of a corpus, on disk."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from embrew.cli.arguments import Backend, Dtype, Model, ModelBackend, ModelDtype, ModelPooling, Quiet
from embrew.cli.console import loading, out
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.corpus import Summary


class Side(StrEnum):
    """Which prompt and length limit texts are encoded with."""

    QUERY = "query"
    DOCUMENT = "document"


class Precision(StrEnum):
    """Data type of the stored vectors."""

    FLOAT32 = "float32"
    INT8 = "int8"
    BINARY = "binary"


class OnBadRows(StrEnum):
    """What to do with a row that cannot be encoded."""

    STRICT = "strict"
    SKIP = "skip"


class Engine(StrEnum):
    """Where texts are encoded."""

    LOCAL = "local"
    RAY = "ray"


def encode(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Corpus: a .jsonl, .json, .csv, .tsv, .parquet or .txt file, or a folder of these; a path or a URL "
            "(s3://, gs://, hf://).",
        ),
    ],
    folder: Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder for the vectors; a path or a URL.")],
    prompt_name: Annotated[
        Side, typer.Option(help="Which prompt and length limit to use: those of documents or of queries.")
    ] = Side.DOCUMENT,
    precision: Annotated[
        Precision,
        typer.Option(help="Data type of the stored vectors; int8 needs 1/4 of the bytes of float32, binary 1/32."),
    ] = (Precision.FLOAT32),
    pooling: ModelPooling = None,
    dtype: ModelDtype = Dtype.AUTO,
    backend: ModelBackend = Backend.TORCH,
    truncate_dim: Annotated[
        int | None, typer.Option(min=1, help="Number of leading dimensions to keep; by default all.")
    ] = None,
    num_layers: Annotated[int | None, typer.Option(min=1, help="Number of layers to run; by default all.")] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of tokens per batch, padding included; 16384 on a GPU, 2048 on a CPU by default.",
        ),
    ] = None,
    shard_rows: Annotated[
        int, typer.Option(min=1, help="Rows per shard. A killed run loses at most one shard.")
    ] = 32_768,
    id_column: Annotated[
        str | None,
        typer.Option(help="Column of the ids; by default _id or id, or the row's number where there is neither."),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of the texts; by default text, after title where there is one.")
    ] = None,
    on_bad_rows: Annotated[
        OnBadRows,
        typer.Option(
            help="What to do with a row that cannot be encoded: strict = stop, skip = list it in "
            "__embrew__/rejects.jsonl."
        ),
    ] = OnBadRows.STRICT,
    max_reject_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="With --on-bad-rows skip: largest share of bad rows before the run stops."),
    ] = 0.01,
    engine: Annotated[
        Engine,
        typer.Option(
            help="local = this process, ray = all devices of a Ray cluster that share a file system or a store."
        ),
    ] = (Engine.LOCAL),
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Update OUTPUT, which holds an earlier version of INPUT: keep vectors of known texts, encode "
            "new ones, remove the others.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Encode a corpus into Parquet shards.

    The same command resumes a run that was stopped.
    """
    if update and engine == Engine.RAY:
        raise ValueError("--update works with --engine local only; leave out --engine ray, or encode into a new folder")
    settings: dict[str, Any] = {
        "prompt_name": prompt_name.value,
        "precision": precision.value,
        "truncate_dim": truncate_dim,
        "num_layers": num_layers,
        "batch_tokens": batch_tokens,
        "shard_rows": shard_rows,
        "id_column": id_column,
        "text_column": text_column,
        "on_bad_rows": on_bad_rows.value,
        "max_reject_rate": max_reject_rate,
    }
    loading(model)
    from embrew.corpus import Job, encode_corpus, read_vectors, update_corpus
    from embrew.corpus.rows import corpus_files

    job = Job(input=corpus, output=folder, **settings)
    corpus_files(corpus)  # before a model is opened
    job.folder.exists()
    if update:
        read_vectors(job.local_folder, partial=True)
    kept = f"{folder} is unchanged; vectors encoded so far are kept" if update else f"finished shards are in {folder}"
    with stopping(lambda: f"{kept}; the same command resumes"):
        if engine == Engine.RAY:
            from embrew.corpus.on_ray import encode_corpus_on_ray

            name = str(Path(model).resolve()) if Path(model).exists() else model
            try:
                summary = encode_corpus_on_ray(
                    partial(_open, name, dtype.value, backend.value, pooling), corpus, folder, **settings
                )
            except ImportError as error:
                raise ValueError(str(error)) from error
        else:
            encoder: Any = _open(model, dtype.value, backend.value, pooling)
            make = update_corpus if update else encode_corpus
            summary = make(encoder, corpus, folder, show_progress_bar=True, **settings)
    show(summary, folder)


def _open(model: str, dtype: str, backend: str, pooling: str | None) -> Any:
    from embrew.opening import open_model

    return open_model(model, dtype=dtype, backend=backend, pooling=pooling)


def show(summary: Summary, folder: str) -> None:
    """Print what the folder holds."""
    again = summary.kept or summary.changes
    speed = f", {summary.rows / summary.seconds:,.0f} rows/s" if not again and summary.seconds else ""
    kept = f", {summary.kept} of them from an earlier run" if summary.kept else ""
    out().print(
        f"[bold]{escape(folder)}[/]: {summary.rows:,} vectors of {summary.dimensions} dimensions in "
        f"{summary.shards} shards{kept}, {summary.bytes / 1e6:,.1f} MB, {summary.seconds:.1f} s{speed}",
        soft_wrap=True,
    )
    if summary.changes:
        out().print(str(summary.changes), soft_wrap=True)
    if summary.rejected:
        out().print(f"{summary.rejected} rows left out; they are listed in __embrew__/rejects.jsonl", style="yellow")
