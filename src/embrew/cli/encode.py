"""`embrew encode`: vectors of a corpus, on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from embrew.cli.arguments import Model, ModelBackend, ModelDtype, ModelPooling
from embrew.cli.console import loading, print_line
from embrew.cli.options import options_of
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.corpus import Summary


@options_of(
    "embrew.corpus.job:Job",
    "prompt_name",
    "precision",
    "id_column",
    "text_column",
    "on_bad_rows",
    truncate_dim=typer.Option(min=1),
    num_layers=typer.Option(min=1),
    batch_tokens=typer.Option(min=1),
    shard_rows=typer.Option(min=1),
    max_reject_rate=typer.Option(min=0, max=1),
)
def encode(
    model: Model,
    corpus: str,
    folder: str,
    *,
    pooling: ModelPooling = None,
    dtype: ModelDtype = "auto",
    backend: ModelBackend = "torch",
    engine: Literal["local", "ray"] = "local",
    update: bool = False,
    **settings: Any,
) -> None:
    """Encode a corpus into Parquet shards.

    The same command resumes a run that was stopped.

    Args:
        corpus (INPUT): Corpus: a .jsonl, .json, .csv, .tsv, .parquet, .txt, .md or .html file, or a folder of these; a
            path or a URL (s3://, gs://, hf://).
        folder (OUTPUT): Folder for the vectors; a path or a URL.
        on_bad_rows: At a row that cannot be encoded: stop, or list it in __embrew__/rejects.jsonl.
        max_reject_rate: With --on-bad-rows skip: stop above this share of bad rows.
        engine: This process, or all devices of a Ray cluster.
        update: OUTPUT holds an earlier version of INPUT: keep vectors of texts that it has.
    """
    if update and engine == "ray":
        raise ValueError("--update works with --engine local only; leave out --engine ray, or encode into a new folder")
    loading(model)
    from embrew.corpus import Job, encode_corpus, read_vectors, update_corpus
    from embrew.corpus.rows import corpus_files
    from embrew.opening import open_model, passport_files

    job = Job(input=corpus, output=folder, **settings)
    corpus_files(corpus)  # before a model is opened
    if update:
        read_vectors(job.local_folder, partial=True)
    unfinished = f"{folder} is unchanged; vectors encoded so far are kept" if update else "finished shards are kept"
    with stopping(lambda: f"{unfinished}; the same command resumes"):
        if engine == "ray":
            from embrew.corpus.on_ray import encode_corpus_on_ray

            name = str(Path(model).resolve()) if Path(model).exists() else model
            opener: Any = partial(open_model, name, dtype=dtype, backend=backend, pooling=pooling)
            summary = encode_corpus_on_ray(opener, corpus, folder, **settings)
        else:
            encoder: Any = open_model(model, dtype=dtype, backend=backend, pooling=pooling)
            make = update_corpus if update else encode_corpus
            if not update:
                settings["passport"] = partial(passport_files, encoder, model)
            summary = make(encoder, corpus, folder, show_progress_bar=True, **settings)
    show(summary, folder)


def show(summary: Summary, folder: str) -> None:
    """Print what the folder holds."""
    speed = f", {summary.rows / summary.seconds:,.0f} rows/s" if not summary.kept and not summary.changes else ""
    earlier = f", {summary.kept} of them from an earlier run" if summary.kept else ""
    print_line(
        (folder, "bold"),
        f": {summary.rows:,} vectors of {summary.dimensions} dimensions in "
        f"{summary.shards} shards{earlier}, {summary.bytes / 1e6:,.1f} MB, {summary.seconds:.1f} s{speed}",
    )
    if summary.changes:
        print_line(str(summary.changes))
    if summary.rejected:
        print_line((f"{summary.rejected} rows left out; they are listed in __embrew__/rejects.jsonl", "yellow"))
