"""`embrew analyze KIND`: figures about models or runs, as a table, JSON, CSV and a picture."""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from embrew.cli import completion
from embrew.cli.analyze.cost import Counts, Demos, Instruction, cost, demonstrations
from embrew.cli.analyze.domain import Columns, domain
from embrew.cli.analyze.kinds import (
    Outcome,
    efficiency,
    memory,
    sink,
    spectrum,
    surface,
    texts_of,
    truncation,
    uniformity,
)
from embrew.cli.arguments import AsJson, ModelPooling, Quiet
from embrew.cli.console import out, print_json, say, wants_json

KINDS: dict[str, Callable[..., Outcome]] = {
    function.__name__: function
    for function in (spectrum, memory, uniformity, sink, surface, truncation, efficiency, cost, demonstrations, domain)
}
Kind = StrEnum("Kind", list(KINDS))  # type: ignore[misc]


KindName = Annotated[
    Kind,
    typer.Argument(
        help="spectrum: dimensions that vectors use. memory: similarity of memory tokens. uniformity: closeness of "
        "positives and spread of texts. sink: attention of the last token. surface: scores by layers and dimensions. "
        "truncation: full and truncated vectors by t-SNE. efficiency: scores of runs by samples. cost: scores of "
        "results by time. demonstrations: scores, time and tokens by their number. domain: separation of "
        "question-answer pairs, and perplexity."
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        autocompletion=completion.recipes,
        help="Folders of encoders or Sentence-Transformers models, Hub ids, or recipes; efficiency: of runs; cost: of "
        "results.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", "-d", metavar="PATH", help="Data folder or file. surface: repeatable."),
]
Split = Annotated[str | None, typer.Option(help="Split of a data folder; by default test, else dev, else train.")]
MaxTexts = Annotated[
    int | None, typer.Option(min=2, metavar="N", help="Number of texts, or of rows of a domain, to sample.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Random seed of samples; 42 by default.")]
BatchTokens = Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens per batch, padding included.")]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="spectrum: share of the largest singular value above which a dimension counts (0.01). memory: cosine "
        "above which tokens count as one (0.9). uniformity: score above which pairs are positives (4)."
    ),
]
PromptName = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.contexts,
        help="sink: also with this prompt or context as prefix. Repeatable.",
    ),
]
SuiteName = Annotated[
    str | None,
    typer.Option(
        metavar="SUITE",
        autocompletion=completion.suites,
        help="surface, demonstrations: a shipped suite or a YAML file; --data is the folder of its data sets.",
    ),
]
Layers = Annotated[
    str | None, typer.Option(metavar="N,…", help="surface: numbers of layers, e.g. 4,8 or 1-6; the last 12.")
]
Dims = Annotated[
    str | None,
    typer.Option(metavar="K,…", help="surface, truncation: numbers of dimensions, e.g. 64,128; 8, 16, … 512."),
]
Pick = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help='surface: name the cheapest cell with a share of the score, e.g. "≥ 98 %".'),
]
Stage = Annotated[str | None, typer.Option(help="efficiency: one stage only.")]
Against = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="efficiency: how many samples each run needs to exceed this run's best."),
]
General = Annotated[
    str | None,
    typer.Option("--general", "-g", metavar="PATH", help="domain: general pairs or texts to compare with."),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write KIND.json, KIND.csv and KIND.png.")
]
PictureFormat = Annotated[Literal["png", "svg", "pdf"], typer.Option(help="Format of the picture in --output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")]


def analyze(
    kind: KindName,
    models: Models,
    data: Data = None,
    split: Split = None,
    max_texts: MaxTexts = None,
    seed: Seed = None,
    batch_tokens: BatchTokens = None,
    threshold: Threshold = None,
    prompt_name: PromptName = None,
    suite: SuiteName = None,
    layers: Layers = None,
    dims: Dims = None,
    pick: Pick = None,
    stage: Stage = None,
    against: Against = None,
    general: General = None,
    demos: Demos = None,
    instruction: Instruction = None,
    counts: Counts = None,
    column: Columns = None,
    pooling: ModelPooling = None,
    output: Output = None,
    picture: PictureFormat = "png",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Analyse vectors, attention, layers or learning curves of models."""
    options: dict[str, Any] = {
        "data": data, "split": split, "max_texts": max_texts, "seed": seed, "batch_tokens": batch_tokens,
        "threshold": threshold, "prompt_name": prompt_name, "suite": suite, "layers": layers, "dims": dims,
        "pick": pick, "stage": stage, "against": against, "general": general, "demos": demos,
        "instruction": instruction, "counts": counts, "column": column, "pooling": pooling,
    }  # fmt: skip
    chosen = {name: value for name, value in options.items() if value not in (None, [])}
    check_options(kind, chosen)
    twice = next((name for name in models if models.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; give each once")
    files = [] if output is None else [output / f"{kind}.{suffix}" for suffix in ("json", "csv", picture)]
    there = next((file for file in files if file.exists()), None)
    if there is not None and not overwrite:
        raise FileExistsError(f"{there} exists; give another folder, or --overwrite to replace it")
    outcome = KINDS[kind](models, **chosen)
    show(outcome)
    write(kind, outcome, chosen, files, overwrite=overwrite)


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise for options that a kind does not have, and for those that it needs."""
    own = {name: one for name, one in inspect.signature(KINDS[kind]).parameters.items() if name != "models"}
    if own.pop("reading", None) is not None:
        own = {**inspect.signature(texts_of).parameters, **own}
    flags = {name: f"--{name.replace('_', '-')}" for name in (*own, *options)}
    wrong = [flags[name] for name in options if name not in own]
    if wrong:
        raise ValueError(f"analyze {kind} does not take {wrong[0]}; it takes {', '.join(flags[name] for name in own)}")
    lacking = [flags[name] for name, one in own.items() if one.default is one.empty and name not in options]
    if lacking:
        raise ValueError(f"analyze {kind} needs {lacking[0]}")


def show(outcome: Outcome) -> None:
    """Print the table and the sentences."""
    columns = list(dict.fromkeys(name for row in outcome.table for name in row))
    table = Table(box=None, pad_edge=False, title=outcome.title)
    for i, name in enumerate(columns):
        table.add_column(name, style="bold" if not i else "", justify="left" if not i else "right")
    for row in outcome.table:
        table.add_row(*(Text(cell(row.get(name))) for name in columns))
    out().print(table)
    for line in outcome.lines:
        say(line)


def cell(value: Any) -> str:
    """Return a value as a cell: four digits of a number; a dash for a missing one."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)


def write(kind: str, outcome: Outcome, options: Mapping[str, Any], files: Sequence[Path], *, overwrite: bool) -> None:
    """Write the figures of all models to files, if there are any, and to stdout, if --json is given."""
    if not files and not wants_json():
        return
    from embrew.files.formats import versions
    from embrew.files.writing import atomic_path, write_json

    document = {"analysis": kind, **options, **outcome.settings, "versions": versions(), "models": outcome.models}
    print_json(document)
    if not files:
        return
    files[0].parent.mkdir(parents=True, exist_ok=True)
    write_json(files[0], document, overwrite=overwrite)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in outcome.rows for key in row)))
    writer.writeheader()
    writer.writerows(outcome.rows)
    with atomic_path(files[1]) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
    if outcome.plot is not None:
        outcome.plot(files[2])
