"""`embrew analyze surface`: scores by number of layers and dimensions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from embrew.cli import completion
from embrew.cli.analyze import options
from embrew.cli.analyze.comparison import encode_settings, model_entry, opened, write
from embrew.cli.arguments import AsJson, Quiet
from embrew.cli.console import out

if TYPE_CHECKING:
    from embrew.analysis.surface import Cell, Surface
    from embrew.evaluation import Task


def surface(
    models: options.Models,
    data: Annotated[
        list[str] | None, typer.Option("--data", "-d", metavar="DIR", help="Data folder. Repeatable.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="SUITE",
            autocompletion=completion.suites,
            help="Name of a shipped suite or a YAML file; --data is the folder of its data sets.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split to evaluate; by default test, or dev where there is no test split; with --pick, dev."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="Numbers of layers, e.g. 4,8 or 1-6; by default the last 12. All layers are always included.",
        ),
    ] = None,
    dims: Annotated[
        str | None,
        typer.Option(
            metavar="K,…",
            help="Numbers of dimensions, e.g. 64,128; by default 8, 16, 32, … 512. All dimensions are always included.",
        ),
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help='Name the cheapest combination that keeps this share of the full score, e.g. "≥ 98 %".',
        ),
    ] = None,
    plot: options.Plot = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE.csv",
            help="Write one row per model, number of layers and number of dimensions to a CSV file.",
        ),
    ] = None,
    tsne: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw full and truncated vectors of the first data set's texts by t-SNE."
        ),
    ] = None,
    tsne_dim: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Number of dimensions of the truncated vectors in --tsne; by default 128, at most half of all.",
        ),
    ] = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    batch_tokens: options.BatchTokens = None,
    max_gb: Annotated[float, typer.Option(min=0.001, metavar="GB", help="Memory for vectors, in GB.")] = 4,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model truncated to each number of layers and dimensions, against time and bytes per vector."""
    from embrew.analysis import surface_plots, surface_scores
    from embrew.analysis.surface import read_numbers, read_share
    from embrew.storage.card import export_options

    options.check_files(models, overwrite, plots=[plot, tsne], files=[table, output])
    share = None if pick is None else read_share(pick)
    axes: Any = {
        "layers": None if layers is None else read_numbers(layers),
        "dims": None if dims is None else read_numbers(dims),
    }
    tasks = _tasks(data or (), suite, split, choosing=share is not None)
    found: list[tuple[str, Surface, Cell | None]] = []
    entries, planes = [], []
    for name in models:
        with opened(name) as encoder:
            result = surface_scores.surface_of(
                encoder,
                tasks,
                **axes,
                **encode_settings(batch_tokens, max_bytes=int(max_gb * 1e9)),
            )
            picked = None if share is None else result.pick(share)
            export = export_options(encoder)
            entry = {**model_entry(name, encoder), **result.summary(), "share": share}
            if tsne is not None:
                planes.append((name, _plane(encoder, tasks[0], tsne_dim)))
        entries.append({**entry, "picked": picked and vars(picked)})
        found.append((name, result, picked))
        out().print(_grid(name, result))
        for line in _words(name, result, picked, export):
            out().print(line)
    if plot is not None:
        surface_plots.plot_surfaces(found, plot)
    if tsne is not None:
        surface_plots.plot_truncations(planes, tsne)
        for (name, plane), entry in zip(planes, entries, strict=True):
            entry["tsne"] = {"dim": plane.dim, "texts": len(plane.whole), "distance": plane.distance}
            entry["tsne"]["distance_share"] = plane.share
            distance = f"mean distance {plane.distance:.2f}, {plane.share:.1%} of that between different texts"
            out().print(Text(f"{name}: t-SNE of all and of {plane.dim} dimensions: {distance}"))
    if table is not None:
        _write_csv(table, found)
    write(output, "surface", entries)


def _tasks(data: Sequence[str], suite: str | None, split: str | None, *, choosing: bool) -> list[Task]:
    """Return the tasks to score: for --pick, dev splits unless the user gives a split or a suite."""
    from embrew.evaluation import Task, find_task
    from embrew.evaluation.dev import dev_task
    from embrew.evaluation.suites import read_suite

    if suite is not None:
        if len(data) > 1 or split:
            raise ValueError("--suite defines tasks and splits; give it with at most one --data")
        tasks = list(read_suite(suite, data=data[0] if data else None).tasks)
    elif choosing and split is None:
        try:
            tasks = [dev_task(folder) for folder in data]
        except ValueError as error:
            raise ValueError(
                f"--pick needs a dev split: {error}. To pick on the test split anyway, give --split test"
            ) from None
    else:
        tasks = [find_task(folder, split=split) for folder in data]
    if not tasks:
        raise ValueError("nothing to evaluate on; give --data DIR or --suite NAME")
    for task in tasks:
        if not isinstance(task, Task):
            raise ValueError(f"{task.name}: tasks of MTEB are not supported here; give --data")
    return tasks  # type: ignore[return-value]


def _plane(encoder: Any, task: Task, dim: int | None) -> Any:
    """Project full and truncated vectors of at most 3,000 of a task's texts to the plane."""
    import numpy as np

    from embrew.analysis import read_texts, truncation_of, vector_chunks

    texts = read_texts(task.path, split=task.split if task.kind != "retrieval" else None, max_texts=3000)
    vectors = np.concatenate(list(vector_chunks(encoder, texts.texts, side=texts.side)))
    return truncation_of(vectors, dim or min(128, vectors.shape[1] // 2))


def _grid(name: str, found: Surface) -> Table:
    """Return scores times 100: one row per layer, the last first; one column per dimension; then the time."""
    shown = Table(box=None, pad_edge=False, title=Text(name, style="bold"), title_justify="left")
    shown.add_column("layers", justify="right")
    for dim in found.dims:
        shown.add_column(f"{dim}", justify="right")
    shown.add_column("ms per text", justify="right")
    for i in reversed(range(len(found.layers))):
        scores = (f"{100 * score:.2f}" for score in found.means[i])
        shown.add_row(str(found.layers[i]), *scores, f"{found.milliseconds[i]:.2f}")
    return shown


def _words(name: str, found: Surface, picked: Cell | None, export: str) -> list[Text]:
    lines = [Text(f"scored on {'; '.join(found.named)}")]
    shallow, least = found.shallow_average(), found.shallow_average(found.dims[0])
    if shallow is not None and least is not None:
        lines.append(
            Text(f"≺Avg {100 * shallow:.2f} at {found.dims[-1]} dimensions, {100 * least:.2f} at {found.dims[0]}")
        )
    if picked is not None:
        if any(task.split == "test" for task in found.tasks):
            lines.append(Text("chosen on a test split: report scores of this choice on other data", style="yellow"))
        whole = found.whole
        lines += [
            Text(
                f"{picked.layers} of {whole.layers} layers and {picked.dim} of {whole.dim} dimensions keep "
                f"{picked.kept:.1%}: {100 * picked.score:.2f} of {100 * whole.score:.2f}"
            ),
            Text(
                f"  {picked.milliseconds:.2f} of {whole.milliseconds:.2f} ms per text, "
                f"{picked.bytes:,} of {whole.bytes:,} bytes per vector"
            ),
            Text(f"  embrew export {shlex.quote(name)} DIR --layers {picked.layers} --dim {picked.dim}{export}"),
        ]
    return lines


def _write_csv(path: Path, found: Sequence[tuple[str, Surface, Cell | None]]) -> None:
    from embrew.comparison.tables import csv_text
    from embrew.files.writing import atomic_path

    tasks = [task.name for task in found[0][1].tasks]
    columns = ["model", "layers", "dim", "score", "kept", "milliseconds", "bytes", "pareto", "picked", *tasks]
    rows: list[list[Any]] = []
    for name, result, picked in found:
        front = result.pareto()
        for i, cell in enumerate(result.cells):
            each = result.scores.reshape(len(tasks), -1)[:, i]
            values = [f"{value:.6f}" for value in (cell.score, cell.kept, cell.milliseconds)]
            marks = [int(cell in front), int(cell == picked)]
            rows.append([name, cell.layers, cell.dim, *values, cell.bytes, *marks, *(f"{s:.6f}" for s in each)])
    with atomic_path(path) as temporary:
        temporary.write_text(csv_text([columns, *rows]), encoding="utf-8")
