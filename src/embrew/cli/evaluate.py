"""`embrew evaluate`: score a model on data folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embrew.cli import completion
from embrew.cli.arguments import Data, Model, ModelBackend, ModelDtype, ModelPooling, OptionalOutput, Overrides, Suite
from embrew.cli.console import Record, loading, print_json, print_line, print_table
from embrew.cli.options import options_of
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.evaluation import Result
    from embrew.evaluation.claims import Claim


def _kinds() -> list[str]:
    """Return the names of the kinds of task; their modules are only imported when a command needs them."""
    from embrew.evaluation.kinds import KINDS

    return list(KINDS)


@options_of(
    "embrew.evaluation:evaluate",
    "generator",
    "overwrite",
    context=typer.Option(metavar="NAME", autocompletion=completion.contexts),
    batch_tokens=typer.Option(min=1),
)
def evaluate(
    model: Model,
    overrides: Overrides = None,
    *,
    data: Data = None,
    suite: Suite = None,
    mteb: list[str] | None = None,
    split: str | None = None,
    kind: Annotated[str | None, typer.Option(autocompletion=_kinds)] = None,
    claim: list[str] | None = None,
    output: OptionalOutput = None,
    report: Path | None = None,
    pooling: ModelPooling = None,
    dtype: ModelDtype = "auto",
    backend: ModelBackend = "torch",
    **options: Any,
) -> Record:
    """Evaluate a model on data folders, a suite or MTEB tasks.

    A recipe is evaluated untrained. Of a language model without embedding settings, the pooling is chosen on the dev
    splits of the data, unless --pooling says it. Processes of torchrun share the tasks. With --claim, the exit code is
    0 if every claim holds for the model as it is, else 1.

    Args:
        data (DIR): Data folder. Repeatable.
        suite: Name of a shipped suite (quick, sts, …) or a YAML file; --data is the folder of its data sets.
        mteb (TASK): Name of an MTEB task. Repeatable.
        split: Split to evaluate; by default test, or dev where there is no test split.
        kind (KIND): Kind of task, such as sts or rag; an unknown one lists all. Default: by the data's columns.
        claim (TASK=SCORE): Published score, times 100 (STSB=82.0). Where it is outside the 95 % interval of the
            measured one, other prompts, dtypes, length limits and normalisation are tried. Repeatable.
        generator (MODEL): Causal language model that answers the questions of rag tasks: nano, a folder or a Hub id. By
            default none.
        context: Name of a context of the model to encode with: queries, and all texts of symmetric tasks. By default
            none.
        output (DIR): Folder for the results; by default they are printed only.
        report (FILE.html): Also write a page about the model; embrew compare writes one about several. Results are
            kept beside it, unless --output is given.
        overwrite: Evaluate every task again and replace results in the output folder.
        batch_tokens: Maximum number of tokens per batch, padding included; default: 16384, on a CPU 2048.
            Sentence-Transformers has batches of 32 texts.
    """
    loading(model)
    from embrew import evaluation, opening
    from embrew.cli.results import page_model, write_page
    from embrew.evaluation.claims import check_claims, read_claims
    from embrew.evaluation.results import write_paths
    from embrew.report.comparison import CHOICE
    from embrew.report.untrained import choose_pooling

    tasks, named = _tasks(data or (), suite, mteb or (), split, kind)  # before a model is opened
    claims = read_claims(claim or (), tasks)
    name, page = ("", None) if report is None else page_model(model, report, output)
    output = output if page is None else page.results
    finished = "results are kept with --output only" if output is None else f"finished tasks are in {output}"
    processes = evaluation.Processes.of_launch()
    if claims and (processes.count > 1 or backend != "torch"):
        raise ValueError("--claim opens the model in several ways; leave out --backend, and start one process")
    with stopping(lambda: f"{finished}; the same command {'starts again' if output is None else 'resumes'}"):
        choice = None
        if pooling is None:
            tokens = options.get("batch_tokens")
            choice = choose_pooling(
                model,
                tasks,
                output,
                dtype=dtype,
                batch_tokens=tokens,
                processes=processes,
                overwrite=options.get("overwrite", False),
            )
        if choice is None and output is not None and processes.rank == 0:
            (output / CHOICE).unlink(missing_ok=True)  # of another model
        model_pooling = choice.pooling if choice else pooling
        encoder: Any = opening.open_model(
            model, overrides or (), pooling=model_pooling, dtype=dtype, backend=backend, as_trained=True
        )
        results = evaluation.evaluate(
            encoder, tasks, output_dir=output, processes=processes, show_progress_bar=True, **options
        )
        reopen = partial(opening.open_model, model, overrides or (), pooling=model_pooling)
        options.pop("overwrite", None)
        checked = check_claims(encoder, tasks, results, claims, reopen=lambda other: reopen(dtype=other), **options)
        if output is not None and processes.rank == 0:
            write_paths(output, model, tasks, pooling=model_pooling)
        if page is not None and report is not None and processes.rank == 0:
            write_page(name, replace(page, pooling=model_pooling), tasks, report, encoder)
    if choice is not None:
        print_line(f"{model}: {choice}")
    _show(results, named)
    document = {
        "results": [_fields(result) for result in results],
        "averages": evaluation.averages(results, named),
        **({"pooling": choice._asdict()} if choice else {}),
        **({"claims": _show_claims(checked)} if checked else {}),
    }
    if not all(each.holds for each in checked):
        print_json(document)
        raise typer.Exit(1)
    return document


def _show_claims(claims: Sequence[Claim]) -> list[Record]:
    """Print what was measured for each claim, and the verdicts; return them for JSON."""
    rows = []
    for task, trial in ((claim.task, trial) for claim in claims for trial in claim.trials):
        scores = (f"{100 * score:.2f}" for score in (trial.score, trial.low, trial.high))
        rows.append([task, trial.variant or "as it is", *scores])
    print_table(("task", "model", "score", "low", "high"), rows, left=("task", "model"))
    for claim in claims:
        print_line((claim.verdict, "green" if claim.holds else "bold red"))
    properties = ("holds", "explanations", "verdict")
    return [{**asdict(claim), **{name: getattr(claim, name) for name in properties}} for claim in claims]


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


def _fields(result: Result) -> Record:
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
        print_table(*table(results, named), bold=("task", "score"), left=texts)
    if rows:
        two_lines = [name.replace(" ", "\n") for name in header]
        print_table(two_lines, rows, bold=("task", "answer\nrecall@1", "exact\nmatch"), left=("task",))
