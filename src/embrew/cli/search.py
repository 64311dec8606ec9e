"""`embrew search`: build an index of documents and search it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.padding import Padding
from rich.text import Text

from embrew.cli.arguments import Model, ModelBackend, ModelDtype, ModelPooling
from embrew.cli.console import Record, err, loading, out, print_line
from embrew.extras import import_extra
from embrew.inspection import command

if TYPE_CHECKING:
    from embrew.search import Hit, SearchIndex

SNIPPET = 320  # characters


def search(
    model: Model,
    questions: Annotated[list[str] | None, typer.Argument(metavar="QUESTION")] = None,
    *,
    index: Annotated[str, typer.Option("--index", "-i")],
    build: str | None = None,
    update: str | None = None,
    corpus: str | None = None,
    pooling: ModelPooling = None,
    dtype: ModelDtype = "auto",
    backend: ModelBackend = "torch",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 5,
    hybrid: bool = False,
    overwrite: bool = False,
    verify: Literal["fast", "full"] = "fast",
    why: bool = False,
) -> Record:
    """Search documents with an index of their vectors.

    Args:
        questions: Questions; by default lines of stdin.
        index (DIR): Index, or folder or URL of vectors of embrew encode.
        build (DOCUMENTS): Build the index first: a file or folder, as of embrew encode.
        update (DOCUMENTS): Update the index first; vectors of texts that it holds are kept.
        corpus: With vectors of embrew encode: the corpus (path or URL), to show its texts.
        top_k: Number of results per question.
        hybrid: Fuse the ranking with that of BM25, which compares words.
        overwrite: With --build, replace DIR if it exists.
        verify: When the files of an index are compared with their sha256: fast = at their first read, full = now.
        why: Search nothing; say what lies between MODEL and the model of the index, and whether a linear map would do.
    """
    from embrew.stores import place_of

    location = place_of(index)
    if build is not None and update is not None:
        raise ValueError("--build makes a new index and --update changes an existing one; give one of them")
    documents = update if build is None else build
    if why and (documents is not None or questions):
        raise ValueError("--why compares MODEL with an index that exists; leave out questions, --build and --update")
    if documents is not None and not isinstance(location, Path):
        raise ValueError(
            f"--index {index}: an index is built in a folder of this machine; of a store, vectors are searched"
        )
    if build is not None and location.exists() and not overwrite:
        raise FileExistsError(f"{index} exists; leave out --build to search it, or --overwrite to build it again")
    if build is None and not location.is_dir():
        raise FileNotFoundError(f"{index} is not an index; build one with --build DOCUMENTS")
    import_extra("faiss", "search", "an index of documents")  # before the model is opened
    loading(model)
    from embrew.corpus import holds_vectors, open_index
    from embrew.opening import open_model
    from embrew.text_encoder import fixed

    encoded = build is None and holds_vectors(location)
    if update is not None and encoded:
        raise ValueError(
            f"--update: {index} holds vectors of embrew encode; give: "
            + command("encode", model, update, index, "--update")
        )
    if corpus is not None and not encoded:
        raise ValueError(f"--corpus {corpus}: {index} has its own texts; leave out the option")
    if not encoded and not isinstance(location, Path):
        raise FileNotFoundError(f"{index} holds no vectors; make them with embrew encode")
    encoder: Any = open_model(model, dtype=dtype, backend=backend, pooling=pooling)
    if why:
        return _why(index, encoder, corpus)
    if documents is None:
        opened = open_index(index, encoder, corpus, verify=verify)
    else:
        changes: Any = {"update": build is None, "overwrite": overwrite, "verify": verify}
        opened = _written(Path(index), encoder, documents, model, **changes)
    answers: list[Record] = []
    if documents is not None and not questions and not sys.stdin.isatty():
        return {"questions": answers}
    with fixed(encoder):
        for question in questions or _typed():
            (hits,) = opened.search([question], top_k=top_k, hybrid=hybrid)
            _show(question, hits)
            answers.append(
                {"question": question, "hits": [{"score": hit.score, **asdict(hit.document)} for hit in hits]}
            )
    return {"questions": answers}


def _why(index: str, encoder: Any, corpus: str | None) -> Record:
    """Print what lies between a model and the one that made an index."""
    from embrew.corpus.between import between

    result = between(index, encoder, corpus)
    for side, verdict in result.faults.items():
        print_line((side, "bold"), f" vectors, by the passport of the index: {verdict}")
    if not result.faults:
        print_line("the index has no passport, which would name a fault")
    print_line(result.verdict)
    if result.mapped is not None:
        print_line((f"measured on {result.held_out} documents, fitted on {result.fitted} texts", "dim"))
    return {**asdict(result), "verdict": result.verdict}


def _written(
    folder: Path,
    encoder: Any,
    documents: str,
    model: str,
    *,
    update: bool,
    overwrite: bool,
    verify: Literal["fast", "full"],
) -> SearchIndex:
    """Build or update an index in a folder."""
    from embrew.files.writing import check_free
    from embrew.opening import passport_files
    from embrew.search import ORDER, SearchIndex

    if not update:
        check_free(folder, marker=ORDER, overwrite=overwrite)
        index = SearchIndex.build(encoder, documents, show_progress_bar=True)
        index.passport = passport_files(encoder, model)
        index.save(folder, overwrite=overwrite)
        return index
    index, changes = SearchIndex.load(folder, encoder, verify=verify).updated(documents, show_progress_bar=True)
    index.save(folder, overwrite=True)
    print_line(str(changes))
    return index


def _show(question: str, hits: list[Hit]) -> None:
    """Print one line per hit, with rank, score and title, and below it the beginning of the text."""
    print_line((question, "bold cyan"))
    for rank, hit in enumerate(hits, start=1):
        print_line(f"{rank:>3}  {hit.score:.3f}  ", (hit.document.title or hit.document.id, "bold"))
        snippet = " ".join(hit.document.text.split())
        if len(snippet) > SNIPPET:
            snippet = snippet[:SNIPPET].rsplit(" ", 1)[0] + " …"
        if snippet:
            out().print(Padding(Text(snippet, style="dim"), (0, 0, 0, 5)))
    print_line()


def _typed() -> Iterator[str]:
    """Yield the non-blank lines of stdin unchanged until it ends; with a prompt on a terminal."""
    terminal = sys.stdin.isatty()
    if terminal:
        err().print("one question per line; an empty line or Ctrl-D ends", style="dim")
    while True:
        try:
            question = out().input("[bold]? [/]") if terminal else input()
        except EOFError:
            return
        if question.strip():
            yield question
        elif terminal:
            return
