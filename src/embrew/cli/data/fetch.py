"""`embrew data fetch`: data sets of the Hub as folders, for training and for evaluation without a network."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from embrew.cli import completion
from embrew.cli.console import print_line

if TYPE_CHECKING:
    from embrew.data.sets import FileSet, HubSet


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
