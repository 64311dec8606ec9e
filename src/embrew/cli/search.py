"""`embrew search`: make an index of documents and ask it questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from embrew.cli.arguments import Model
from embrew.cli.console import err, out

if TYPE_CHECKING:
    from embrew.search import Hit

SNIPPET = 320  # characters


def search(
    model: Model,
    index: Annotated[Path, typer.Option("--index", "-i", metavar="DIR", help="Folder of the index.")],
    questions: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="Without any: read questions from the terminal.")
    ] = None,
    build: Annotated[
        str | None,
        typer.Option("--build", metavar="DOCUMENTS", help="Make the index first: BEIR folder, .jsonl, .parquet, .txt."),
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Results for each question.")] = 5,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --build: replace DIR if it is there.")] = False,
) -> None:
    """Search documents by meaning."""
    if build is not None and index.exists() and not overwrite:
        raise FileExistsError(f"{index} exists; leave out --build to search it, or --overwrite to make it again")
    if build is None and not index.is_dir():
        raise FileNotFoundError(f"{index} is no index; make it with --build DOCUMENTS")
    from embrew.build import open_model
    from embrew.search import SearchIndex, build_index

    encoder: Any = open_model(model)
    console = out()
    if build is None:
        found = SearchIndex.load(index, encoder)
    else:
        found = build_index(encoder, build, index, overwrite=overwrite, show_progress_bar=console.is_terminal)
        if not questions and not sys.stdin.isatty():
            return
    for question in questions or _asked(console):
        show_hits(console, question, found.search([question], top_k=top_k)[0])


def show_hits(console: Console, question: str, hits: list[Hit]) -> None:
    """Rank, score and title a line, and under it how the text begins."""
    console.print(Text(question, style="bold cyan"))
    for rank, hit in enumerate(hits, start=1):
        head = Text(f"{rank:>3}  {hit.score:.3f}  ")
        head.append(hit.document.title or hit.document.id, style="bold")
        console.print(head, soft_wrap=True)
        snippet = " ".join(hit.document.text.split())
        if len(snippet) > SNIPPET:
            snippet = snippet[:SNIPPET].rsplit(" ", 1)[0] + " …"
        console.print(Padding(Text(snippet, style="dim"), (0, 0, 0, 5)))
    console.print()


def _asked(console: Console) -> Iterator[str]:
    """Questions from stdin, unchanged, a non-blank line each, until it ends; with a prompt in a terminal."""
    if sys.stdin.isatty():
        err().print("one question a line; an empty line or Ctrl-D ends", style="dim")
    while True:
        try:
            question = console.input("[bold]? [/]") if sys.stdin.isatty() else input()
        except EOFError:
            return
        if question.strip():
            yield question
        elif sys.stdin.isatty():
            return
