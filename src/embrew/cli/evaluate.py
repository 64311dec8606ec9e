"""`embrew evaluate`: score a model on data folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from embrew.cli import completion
from embrew.cli.arguments import AsJson, Model, ModelBackend, ModelDtype, ModelPooling, Overrides, Quiet
from embrew.cli.console import loading, out, print_json, say
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.evaluation import Result


def _kinds() -> list[str]:
    """Return the names of the kinds of task; their modules are only imported when a command needs them."""
    from embrew.evaluation.kinds import KINDS

    return list(KINDS)


Data = Annotated[list[str] | None, typer.Option("--data", "-d", metavar="DIR", help="Data folder. Repeatable.")]
SuiteName = Annotated[
    str | None,
    typer.Option(
        metavar="SUITE",
        autocompletion=completion.suites,
        help="Name of a shipped suite (quick, sts, …) or a YAML file; --data is the folder of its data sets.",
    ),
]
Mteb = Annotated[list[str] | None, typer.Option("--mteb", metavar="TASK", help="Name of an MTEB task. Repeatable.")]
Split = Annotated[
    str | None, typer.Option(help="Split to evaluate; by default test, or dev where there is no test split.")
]
KindName = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        autocompletion=_kinds,
        help="Kind of task, such as sts or rag; an unknown one lists all. Default: by the data's columns.",
    ),
]
GeneratorModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Causal language model that answers the questions of rag tasks: nano, a folder or a Hub id. By default "
        "none.",
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.contexts,
        help="Name of a context of the model to encode with: queries, and all texts of symmetric tasks. By default "
        "none.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Folder for the results; by default they are printed only."),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Also write a page about the model; embrew compare writes one about several. Results are kept beside it, "
        "unless --output is given.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Evaluate every task again and replace results in the output folder.")
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of tokens per batch, padding included; default: 16384, on a CPU 2048. "
        "Sentence-Transformers has batches of 32 texts.",
    ),
]


def evaluate(
    model: Model,
    overrides: Overrides = None,
    data: Data = None,
    suite: SuiteName = None,
    mteb: Mteb = None,
    split: Split = None,
    kind: KindName = None,
    generator: GeneratorModel = None,
    context: ContextName = None,
    output: Output = None,
    report: Report = None,
    pooling: ModelPooling = None,
    dtype: ModelDtype = "auto",
    backend: ModelBackend = "torch",
    overwrite: Overwrite = False,
    batch_tokens: BatchTokens = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model on data folders, a suite or MTEB tasks.

    A recipe is evaluated untrained. Of a language model without embedding settings, the pooling is chosen on the dev
    splits of the data, unless --pooling says it. Processes of torchrun share the tasks.
    """
    loading(model)
    from embrew import evaluation, opening
    from embrew.cli.compare import page_model, write_page
    from embrew.evaluation.paths import write_paths
    from embrew.report.untrained import choose_pooling

    tasks, named = _tasks(data or (), suite, mteb or (), split, kind)  # before a model is opened
    name, page = ("", None) if report is None else page_model(model, report, output)
    output = output if page is None else page.results
    finished = "results are kept with --output only" if output is None else f"finished tasks are in {output}"
    processes = evaluation.Processes.of_launch()
    common: Any = {"batch_tokens": batch_tokens, "processes": processes}
    with stopping(lambda: f"{finished}; the same command {'starts again' if output is None else 'resumes'}"):
        choice = choose_pooling(model, tasks, output, dtype=dtype, **common) if pooling is None else None
        how_read = choice.pooling if choice else pooling
        how_opened: Any = {"dtype": dtype, "backend": backend, "as_trained": True}
        encoder: Any = opening.open_model(model, overrides or (), pooling=how_read, **how_opened)
        common |= {"generator": generator, "context": context, "overwrite": overwrite, "show_progress_bar": True}
        results = evaluation.evaluate(encoder, tasks, output_dir=output, **common)
        if output is not None and processes.rank == 0:
            write_paths(output, model, tasks, pooling=how_read)
        if page is not None and report is not None and processes.rank == 0:
            write_page(name, replace(page, pooling=how_read), tasks, report, encoder)
    if choice is not None:
        say(f"{model}: {choice}")
    _show(results, named)
    print_json(
        {
            "results": [_fields(result) for result in results],
            "averages": evaluation.averages(results, named),
            **({"pooling": choice._asdict()} if choice else {}),
        }
    )


def _tasks(
    data: Sequence[str], suite: str | None, mteb: Sequence[str], split: str | None, kind: str | None
) -> tuple[Sequence[Any], Mapping[str, Sequence[str]]]:
    """Return the tasks of a suite with its named averages, or those of data folders and of MTEB."""
    from embrew.evaluation import MtebTask
    from embrew.evaluation.mteb_tasks import load_task
    from embrew.evaluation.suites import read_tasks

    if not data and not mteb and suite is None:
        raise ValueError("nothing to evaluate on; give --data DIR, --mteb TASK or --suite NAME")
    if mteb and suite is not None:
        raise ValueError("--suite defines tasks; leave out --mteb")
    tasks, named = read_tasks(suite, data, split=split, kind=kind)
    of_mteb = [MtebTask(name, name) for name in mteb]
    for task in of_mteb:
        load_task(task)
    return [*tasks, *of_mteb], named


def _fields(result: Result) -> dict[str, Any]:
    """Return a result for JSON, with the number of its examples and without its sidecar."""
    fields = {**vars(result), "examples": len(result.examples)}
    del fields["run"]
    return fields


def _show(results: Sequence[Result], named: Mapping[str, Sequence[str]]) -> None:
    """Print a table with one row per task and averages, and one with a row per cell of a grid."""
    from embrew.evaluation import grid_table, table

    header, rows = grid_table(results)
    if named or len(rows) < len(results):
        texts = ("task", "split", "metric", "size")
        out().print(_plain_table(*table(results, named), bold=("task", "score"), texts=texts))
    if rows:
        two_lines = [name.replace(" ", "\n") for name in header]
        out().print(_plain_table(two_lines, rows, bold=("task", "answer\nrecall@1", "exact\nmatch")))


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
