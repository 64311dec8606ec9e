"""`embrew data`: download data sets, mine hard negatives, show training data, count texts of evaluation sets in it."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from embrew.cli import completion
from embrew.cli.arguments import Overrides, RecipeName
from embrew.cli.console import Record, print_line
from embrew.cli.data_mine import mine
from embrew.cli.data_show import show
from embrew.cli.options import command

if TYPE_CHECKING:
    from embrew.data.sets import FileSet, HubSet

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show training data as the model sees it, mine hard negatives, download test data."""


@command(app)
def fetch(
    names: Annotated[list[str], typer.Argument(autocompletion=completion.fetchable)], *, to: Path = Path("data")
) -> None:
    """Download data of the Hub into a folder: training sets, or a suite's test sets.

    Args:
        names (NAME...): Data sets that shipped recipes read (nli-triplets, squad-pairs, …; another name lists all),
            shipped suites, or a suite's YAML file.
        to (DIR): Folder to write: DIR/NAME; a suite's is --data of evaluate.
    """
    from embrew.data.sets import data_sets

    for name in names:
        if name in data_sets():
            _fetch_set(data_sets()[name], to / name)
        else:
            _fetch_suite(name, to)


def _fetch_set(source: HubSet | FileSet, folder: Path) -> None:
    from embrew.data.fetching import ABOUT, fetch
    from embrew.data.sets import FileSet
    from embrew.files.reading import read_json

    done = "downloaded" if fetch(source, folder) else "already there"
    about = read_json(folder / ABOUT)
    size, origin = f"{len(about['rows'])} files", ""
    if not isinstance(source, FileSet):
        size = ", ".join(f"{count:,} rows of {split}" for split, count in about["rows"].items())
        origin = f"{source.hub} at {about['commit']}; "
    for line in (f"{folder}: {done}, {size}", f"  {source.about}", f"  {origin}licence: {source.licence}"):
        print_line(line)


def _fetch_suite(suite: str, to: Path) -> None:
    from embrew.data.sets import data_sets
    from embrew.evaluation.hotpotqa import store_hotpotqa
    from embrew.evaluation.mteb_tasks import fetched_folder, load_task, store_task
    from embrew.evaluation.suites import fetchable
    from embrew.settings.validation import did_you_mean

    try:
        tasks, sources, local = fetchable(suite)
    except FileNotFoundError as error:
        hint = did_you_mean(suite, data_sets())
        raise FileNotFoundError(f"{error}; data sets: {', '.join(data_sets())}{hint}") from None
    if not tasks and not sources:
        raise ValueError(
            f"suite {suite} has no task of MTEB or the Hub; provide its folders yourself: {', '.join(local)}"
        )
    for task in tasks:
        now = store_task(load_task(task), fetched_folder(to, task))
        print_line(f"{task.name}: {'downloaded' if now else 'already there'}")
    for source in sources:
        print_line(f"{source.path}: {'downloaded' if store_hotpotqa(source, to / source.folder) else 'already there'}")
    if local:
        print_line(f"not downloaded, provide these folders yourself: {', '.join(local)}")
    print_line(f"on another machine: embrew evaluate MODEL --suite {quote(suite)} --data {quote(str(to))}")


command(app, quiet=True)(mine)
command(app)(show)


@command(app)
def overlap(recipe: RecipeName, overrides: Overrides = None) -> Record:
    """Count the training rows that hold a text of the recipe's dev and guard sets; training logs the same counts."""
    from embrew.data.reading import public_name
    from embrew.evaluation.dev import dev_sets
    from embrew.evaluation.overlap import count_overlaps, hash_texts, overlap_lines
    from embrew.recipe import build

    loaded = build.load_recipe(recipe, overrides or ())
    if not loaded.stages or loaded.evaluation is None:
        raise ValueError(f"{recipe} has no {'evaluation' if loaded.stages else 'stages'}; overlap needs both")
    evaluation_texts = hash_texts(dev_sets(loaded.evaluation.dev, loaded.evaluation.guard).texts())
    entries = []
    for stage in loaded.stages:
        for config in stage.datasets:
            rows = build.rows(config, build.objective(stage.objective), max_rows=config.max_rows)
            name = ", ".join(public_name(path)[0] for path in config.paths)
            counts = count_overlaps(rows, evaluation_texts)
            for line in overlap_lines(name, len(rows), counts):
                print_line(f"{stage.name}: {line}")
            entries.append({"stage": stage.name, "data": name, "rows": len(rows), "overlap": counts})
    return {"recipe": recipe, "data": entries}
