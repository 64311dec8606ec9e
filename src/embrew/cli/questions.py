"""`embrew questions`: questions for documents, written by a language model and checked by search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from embrew.cli.arguments import Count, Output
from embrew.cli.console import Record, loading, print_line, print_table
from embrew.cli.options import options_of
from embrew.cli.signals import stopping
from embrew.settings.validation import shortened

WIDTH = 90  # characters of a question


@options_of(
    "embrew.adapting.questions.job:write_questions",
    "check",
    "teacher",
    "dry_run",
    "overwrite",
    per_passage=typer.Option(min=1),
    max_chars=typer.Option(min=50),
    seed=typer.Option(min=0),
)
def questions(
    documents: str,
    *,
    output: Output,
    writer: str,
    max_passages: Count = None,
    **options: Any,
) -> Record:
    """Write questions for documents with a language model.

    Those whose passage a search finds are kept; 20 kept and 20 rejected ones are shown. OUTPUT holds pairs that train
    and adapt read; NAME.checked.jsonl beside it every question with its rank, score and
    reason of rejection. The same command resumes a run that was stopped.

    Args:
        documents (DOCS): Folder of .txt, .md, .html, .jsonl or .pdf files, file of rows, or Hub id.
        output (OUTPUT.jsonl): File for the questions with their passages.
        writer (MODEL|URL): Causal language model (folder, GGUF file, Hub id, smollm2-135m), folder trained by
            questions/smollm2, or server http://HOST/v1#MODEL with OpenAI's API, and its key in EMBREW_API_KEY.
        check (MODEL): Search that has to find the passage among its first ten: bm25, or an embedding model.
        teacher (MODEL): Cross-encoder or embedding model; adds mined negatives and its scores.
        max_passages (N): Number of passages to draw; by default all.
        dry_run: Write the questions of 16 passages, show the time of all, and stop.
        overwrite: Replace OUTPUT if it exists.
    """
    loading("the writer")
    from embrew.adapting.questions import write_questions

    with stopping(lambda: "what was written is kept; the same command resumes"):
        report = write_questions(documents, output, writer=writer, max_passages=max_passages, **options)
    for kind, rows in report["examples"].items():
        _show(f"{kind}, {len(rows)} examples", rows)
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in report["rejected"].items())
    print_line(
        f"{report['kept']:,} of {report['questions']:,} questions are kept; rejected: {rejected or 'none'}",
        f": {report['output']}, {report['checked']}" if report["output"] else "; nothing written but the first block",
    )
    return {**report}


def _show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print questions with their passages, ranks and reasons."""
    cells = [
        (
            shortened(" ".join(row["query"].split()), WIDTH),
            row["passage"],
            row["reason"] or f"{row['rank']}",
        )
        for row in rows
    ]
    if rows:
        print_table(("question", "passage", "rank or reason"), cells, left=("question", "passage"), title=title)
