"""`embrew evaluate`: score a model on data folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from embrew.cli import completion
from embrew.cli.arguments import AsJson, Computes, Dtype, Model, Overrides, Quiet
from embrew.cli.console import loading, out, print_json
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.evaluation import Result


class StsProtocol(StrEnum):
    """How the subsets of an STS set become one score."""

    ALL = "all"
    PER_SUBSET = "per-subset"


def _kinds() -> list[str]:
    """Return the names of the kinds of task; their modules are only imported when a command needs them."""
    from embrew.evaluation.kinds import KINDS

    return list(KINDS)


def _known_kind(kind: str | None) -> str | None:
    if kind is not None and kind not in _kinds():
        raise typer.BadParameter(f"{kind!r}; choose from {', '.join(_kinds())}")
    return kind


def evaluate(
    model: Model,
    overrides: Overrides = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", "-d", metavar="DIR", help="Data folder; may be given again.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="SUITE",
            autocompletion=completion.suites,
            help="quick, evidence, sts, full, rag or a YAML file; --data holds its folders.",
        ),
    ] = None,
    mteb: Annotated[
        list[str] | None, typer.Option("--mteb", metavar="TASK", help="A task of MTEB by name; may be given again.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to score; by default test, else dev.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            callback=_known_kind,
            autocompletion=_kinds,
            help="Kind of task, such as sts or rag; an unknown one lists all. Default: by the data's columns.",
        ),
    ] = None,
    sts_protocol: Annotated[
        StsProtocol | None, typer.Option(help="STS of several subsets: all pairs together, or the mean of the subsets.")
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A causal LM that answers the questions of rag tasks: nano, folder, Hub id."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=completion.contexts, help="A context of the model, before texts and queries."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write results here.")] = None,
    dtype: Computes = Dtype.AUTO,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Evaluate every task again and replace results in the output folder."),
    ] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Padded tokens per batch.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score a model, or an untrained recipe, on data folders or a suite of them."""
    loading(model)
    from embrew.evaluation import find_task

    protocol: Any = sts_protocol and sts_protocol.value
    tasks: Any
    named: Mapping[str, Sequence[str]] = {}
    if suite is not None:
        from embrew.evaluation.suites import read_suite

        if len(data or ()) > 1 or mteb or split or kind or protocol:
            raise ValueError("--suite says tasks, splits, kinds and protocols; give it with one --data at most")
        tasks = read_suite(suite, data=data[0] if data else None)
        named = tasks.averages
    elif data or mteb:
        for folder in data or ():  # before a model is opened
            find_task(folder, split=split, kind=kind)
        tasks = [*(data or ()), *_mteb_tasks(mteb or ())]
    else:
        raise ValueError("nothing to evaluate on; give --data DIR, --mteb TASK, or --suite with one of its names")
    from embrew import build, evaluation

    kept = "no results are kept without --output" if output is None else f"finished tasks are in {output}"
    with stopping(lambda: f"{kept}; the same command {'starts again' if output is None else 'resumes'}"):
        encoder: Any = build.open_model(model, overrides or (), dtype=dtype.value)
        results = evaluation.evaluate(
            encoder,
            tasks,
            output_dir=output,
            split=split,
            kind=kind,
            sts_protocol=protocol,
            generator=generator,
            batch_tokens=batch_tokens,
            context=context,
            overwrite=overwrite,
            show_progress_bar=True,
        )
    header, rows = evaluation.grid_table(results)
    if named or len(rows) < len(results):
        out().print(results_table(results, named))
    if rows:
        two_lines = [name.replace(" ", "\n") for name in header]
        out().print(_plain_table(two_lines, rows, bold=("task", "answer\nrecall@1", "exact\nmatch")))
    print_json(
        {
            "results": [{**vars(result), "examples": len(result.examples)} for result in results],
            "averages": evaluation.averages(results, named),
        }
    )


def _mteb_tasks(names: Sequence[str]) -> list[Any]:
    if not names:
        return []
    from embrew.evaluation.mteb_tasks import MtebTask, load_task

    tasks = [MtebTask(name, name) for name in names]
    for task in tasks:
        load_task(task)
    return tasks


def results_table(results: Sequence[Result], named: Mapping[str, Sequence[str]] | None = None) -> Table:
    """A row a task, scores times 100, and their averages where there are several."""
    from embrew.evaluation import table

    header, rows = table(results, named)
    return _plain_table(header, rows, bold=("task", "score"), texts=("task", "split", "metric", "size"))


def _plain_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, bold: Sequence[str], texts: Sequence[str] = ("task",)
) -> Table:
    shown = Table(box=None, pad_edge=False)
    for name in header:
        style, side = "bold" if name in bold else None, "left" if name in texts else "right"
        shown.add_column(name, style=style, justify=side, no_wrap=name in bold)  # type: ignore[arg-type]
    for row in rows:
        shown.add_row(*row)
    return shown
