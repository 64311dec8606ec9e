"""`embrew encode`: vectors of a corpus, on disk."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from embrew.cli.arguments import Computes, Dtype, Model, Quiet
from embrew.cli.console import loading, out
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.corpus import Summary


class Side(StrEnum):
    """Which prompt and length limit texts get."""

    QUERY = "query"
    DOCUMENT = "document"


class Precision(StrEnum):
    """What is stored of a vector."""

    FLOAT32 = "float32"
    INT8 = "int8"
    BINARY = "binary"


class OnBadRows(StrEnum):
    """What is done about a row that cannot be encoded."""

    STRICT = "strict"
    SKIP = "skip"


class Engine(StrEnum):
    """Who does the work."""

    LOCAL = "local"
    RAY = "ray"


def encode(
    model: Model,
    corpus: Annotated[
        str, typer.Argument(metavar="INPUT", help="A .jsonl, .json, .csv, .tsv, .parquet or .txt file, or a folder.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the shards.")],
    prompt_name: Annotated[Side, typer.Option(help="Encode as documents or as queries.")] = Side.DOCUMENT,
    precision: Annotated[Precision, typer.Option(help="int8 takes a quarter of the bytes, binary a 32nd.")] = (
        Precision.FLOAT32
    ),
    dtype: Computes = Dtype.AUTO,
    truncate_dim: Annotated[int | None, typer.Option(min=1, help="Number of leading dimensions to keep.")] = None,
    num_layers: Annotated[int | None, typer.Option(min=1, help="Number of layers to run.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Padded tokens per batch; 16384 on a GPU, 2048 on a CPU.")
    ] = None,
    shard_rows: Annotated[
        int, typer.Option(min=1, help="Rows per shard; a killed run loses one shard at most.")
    ] = 32_768,
    id_column: Annotated[str | None, typer.Option(help="By default _id or id, else the row's number.")] = None,
    text_column: Annotated[str | None, typer.Option(help="By default text, after title if there is one.")] = None,
    on_bad_rows: Annotated[
        OnBadRows,
        typer.Option(help="strict stops at a row that cannot be encoded; skip lists it in __embrew__/rejects.jsonl."),
    ] = OnBadRows.STRICT,
    max_reject_rate: Annotated[
        float, typer.Option(min=0, max=1, help="With skip: stop when a larger share of the rows is bad.")
    ] = 0.01,
    engine: Annotated[Engine, typer.Option(help="ray: all devices of a Ray cluster that share a file system.")] = (
        Engine.LOCAL
    ),
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="OUTPUT holds an older version of INPUT: keep the vectors of its texts, encode new ones, drop others.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Encode a corpus into Parquet shards; the same command resumes a run that was stopped."""
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
    from embrew.corpus.corpus import corpus_files

    Job(input=corpus, output=folder, **settings)
    corpus_files(corpus)  # before a model is opened
    if update:
        read_vectors(folder, partial=True)
    kept = f"{folder} is as it was; what was encoded is kept" if update else f"finished shards are in {folder}"
    with stopping(lambda: f"{kept}; the same command resumes"):
        if engine == Engine.RAY:
            from embrew.corpus.on_ray import encode_corpus_on_ray

            name = str(Path(model).resolve()) if Path(model).exists() else model
            try:
                summary = encode_corpus_on_ray(partial(_open, name, dtype.value), corpus, folder, **settings)
            except ImportError as error:
                raise ValueError(str(error)) from error
        else:
            encoder: Any = _open(model, dtype.value)
            make = update_corpus if update else encode_corpus
            summary = make(encoder, corpus, folder, show_progress_bar=True, **settings)
    show(summary, folder)


def _open(model: str, dtype: str) -> Any:
    from embrew.build import open_model

    return open_model(model, dtype=dtype)


def show(summary: Summary, folder: Path) -> None:
    """What is in the folder, in a line or two."""
    again = summary.kept or summary.changes
    speed = f", {summary.rows / summary.seconds:,.0f} rows/s" if not again and summary.seconds else ""
    kept = f", {summary.kept} of them from before" if summary.kept else ""
    out().print(
        f"[bold]{escape(str(folder))}[/]: {summary.rows:,} vectors of {summary.dimensions} dimensions in "
        f"{summary.shards} shards{kept}, {summary.bytes / 1e6:,.1f} MB, {summary.seconds:.1f} s{speed}",
        soft_wrap=True,
    )
    if summary.changes:
        out().print(str(summary.changes), soft_wrap=True)
    if summary.rejected:
        out().print(f"{summary.rejected} rows left out; they are listed in __embrew__/rejects.jsonl", style="yellow")
