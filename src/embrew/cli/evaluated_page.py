"""The page of `embrew evaluate --report`: that of a comparison, of one model."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embrew.cli.console import out
from embrew.evaluation.kinds import KINDS
from embrew.report.making import files_of, make_report
from embrew.report.page import check_packages
from embrew.report.sources import NamedSources, Source, read_sources
from embrew.report.task_data import Tasks


@dataclass(frozen=True)
class EvaluatedPage:
    """A page about a model that is being evaluated.

    Attributes:
        file: The page.
        name: Name of the model.
        source: The model, with the folder of its results.
        tasks: Tasks with their data.
    """

    file: Path
    name: str
    source: Source
    tasks: Tasks

    @classmethod
    def of_model(cls, model: str, file: Path, output: Path | None, tasks: Tasks) -> EvaluatedPage:
        """Return the page of a model as `embrew evaluate` opens it, of a run the last stage; all errors are here.

        Args:
            model: Folder, recipe or Hub id.
            file: The page.
            output: Folder of results; by default beside the page.
            tasks: What the model is evaluated on.
        """
        check_packages()
        if file.suffix != ".html":
            raise ValueError(f"--report {file}: the report is an HTML page; give FILE.html")
        last = read_sources([model])[-1]
        results = output or files_of(file) / "results" / last.name.replace("/", "--")
        (source,) = last.seeds
        own = [task for task in tasks if not KINDS[getattr(task, "kind", "sts")].grid]
        return cls(file, last.name, replace(source, results=results), own)

    @property
    def results(self) -> Path:
        """Folder of the results."""
        assert self.source.results is not None
        return self.source.results

    def with_pooling(self, pooling: str | None) -> EvaluatedPage:
        """Return the page of a language model whose pooling was chosen, which its name says."""
        if pooling is None:
            return self
        return replace(self, name=f"{self.name} ({pooling})", source=replace(self.source, pooling=pooling))

    def write(self, encoder: Any) -> None:
        """Write the page; the encoder, which is open, is measured."""
        command = shlex.join(["embrew", *sys.argv[1:]])
        models = [NamedSources(self.name, (self.source,))]
        make_report(models, self.tasks, self.file, opener=lambda _: encoder, command=command)
        out().print(f"written to {self.file}", markup=False, soft_wrap=True)
