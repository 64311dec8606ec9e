"""`embrew data mine`: hard negatives for pairs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from embrew.cli.arguments import Columns, Count, Model, ModelPooling, columns_of
from embrew.cli.console import Record, loading, out, print_line
from embrew.cli.options import options_of
from embrew.settings.validation import shortened

EXAMPLES = 20
WIDTH = 110  # characters of a text


@options_of("embrew.mining:mine", num_negatives=typer.Option(min=1), relative_margin=typer.Option(min=0, max=1))
def mine(
    model: Model,
    pairs: str,
    output: Path,
    *,
    corpus: str | None = None,
    column: Columns = None,
    split: str = "train",
    max_rows: Count = None,
    pooling: ModelPooling = None,
    seed: int = 42,
    dry_run: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Record:
    """Find hard negatives for pairs, show up to 20 pairs with similarities, and write all of them.

    Args:
        pairs: File, folder or Hub data set of pairs.
        output (OUTPUT.jsonl): File for the pairs with their negatives.
        corpus (PATH): Documents to search for negatives; by default the positives of all pairs.
        column: Name a column of PAIRS, e.g. query=question. Repeatable.
        split: Split of PAIRS.
        max_rows: Number of pairs to sample; by default all.
        num_negatives: Maximum number of negatives per pair.
        relative_margin: A negative's similarity is below (1 - margin) times the positive's.
        seed: Random seed for the sample and for the examples shown.
        dry_run: Show what would be written without writing it.
        overwrite: Replace OUTPUT if it exists.
    """
    if output.exists() and not (overwrite or dry_run):
        raise FileExistsError(f"{output} exists; give another file, or --overwrite to replace it")
    columns = columns_of(column)
    if split == "test":
        raise ValueError("--split test: mined rows are for training; give another split")
    loading(model)
    from embrew.data.beir import read_documents
    from embrew.data.datasets import load
    from embrew.files.writing import write_jsonl
    from embrew.mining import mine as find
    from embrew.opening import open_model

    rows = load(pairs, kind="pairs", split=split, columns=columns, max_rows=max_rows, shuffle_seed=seed)
    documents = [document.content for document in read_documents(corpus)] if corpus else None
    encoder: Any = open_model(model, pooling=pooling)
    mined = find(encoder, rows, corpus=documents, **options)
    examples = random.Random(seed).sample(mined.rows, min(EXAMPLES, len(mined.rows)))
    _show(examples)
    counts = {
        "negatives": sum(len(row["negatives"]) for row in mined.rows),
        "pairs": len(mined.rows),
        "pairs_without": mined.pairs_without,
    }
    if not dry_run:
        write_jsonl(output, mined.rows, overwrite=overwrite)
    print_line(
        f"{counts['negatives']:,} negatives for {counts['pairs']:,} pairs; {mined.pairs_without:,} pairs have none and "
        f"are left out{'; nothing written' if dry_run else f': {output}'}",
    )
    return {**counts, "output": None if dry_run else str(output), "examples": examples}


def _show(pairs: Sequence[Mapping[str, Any]]) -> None:
    """Print pairs with their negatives."""
    console = out()
    for row in pairs:
        console.print(Text(shortened(" ".join(row["query"].split()), WIDTH), style="bold"), no_wrap=True)
        for kind, text, score in zip(
            ("+", *"-" * len(row["negatives"])), (row["positive"], *row["negatives"]), row["scores"], strict=True
        ):
            line = f"  {kind} {score:.3f}  {shortened(' '.join(text.split()), WIDTH)}"
            console.print(Text(line, style="green" if kind == "+" else "red"), no_wrap=True)
