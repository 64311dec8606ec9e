"""The page of `embrew evaluate --report`: that of `embrew compare`, about one model."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.cli.console import out
from embrew.evaluation.kinds import KINDS
from embrew.report.making import files_of, make_report
from embrew.report.page import check_packages
from embrew.report.sources import NamedSources, read_sources
from embrew.report.task_data import Tasks


def page_model(model: str, file: Path, output: Path | None) -> NamedSources:
    """Return the model of a page with the folder of its results; of a training run, the model of the last stage.

    Args:
        model: Folder, recipe or Hub id.
        file: The page.
        output: Folder of results; by default beside the page.
    """
    check_packages()
    if file.suffix != ".html":
        raise ValueError(f"--report {file}: the report is an HTML page; give FILE.html")
    last = read_sources([model])[-1]
    results = output or files_of(file) / "results" / last.name.replace("/", "--")
    (source,) = last.seeds
    return NamedSources(last.name, (replace(source, results=results),))


def write_page(model: NamedSources, tasks: Tasks, file: Path, encoder: Any, pooling: str | None) -> None:
    """Write the page; the encoder, which is open, is measured. The name says the pooling of a bare language model."""
    if pooling is not None:
        model = NamedSources(f"{model.name} ({pooling})", (replace(model.seeds[0], pooling=pooling),))
    shown = [task for task in tasks if not KINDS[getattr(task, "kind", "sts")].grid]
    command = shlex.join(["embrew", *sys.argv[1:]])
    make_report([model], shown, file, opener=lambda _: encoder, command=command)
    out().print(f"written to {file}", markup=False, soft_wrap=True)
