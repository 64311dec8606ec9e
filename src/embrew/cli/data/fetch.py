"""`embrew data fetch`: test data for offline use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embrew.cli import completion
from embrew.cli.console import out


def fetch(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE", autocompletion=completion.suites, help="A shipped suite's name or a YAML file."
        ),
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Folder to write; evaluate --suite takes it as --data.")
    ],
) -> None:
    """Download a suite's data from MTEB and the Hub into a folder, for machines without a network."""
    from embrew.evaluation.hotpotqa import keep
    from embrew.evaluation.mteb_tasks import fetch as fetch_tasks
    from embrew.evaluation.suites import fetchable

    tasks, sources, local = fetchable(suite)
    if not tasks and not sources:
        raise ValueError(
            f"suite {suite} has no task of MTEB or the Hub; provide its folders yourself: {', '.join(local)}"
        )
    console = out()
    for task, now in fetch_tasks(tasks, to):
        console.print(f"{task.name}: {'downloaded' if now else 'already there'}", markup=False)
    for source in sources:
        console.print(
            f"{source.path}: {'downloaded' if keep(source, to / source.folder) else 'already there'}", markup=False
        )
    if local:
        console.print(f"not downloaded, provide these folders yourself: {', '.join(local)}", markup=False)
    console.print(
        f"on another machine: embrew evaluate MODEL --suite {suite} --data {to}", markup=False, soft_wrap=True
    )
