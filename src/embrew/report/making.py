"""Make a report: evaluate what is missing, compare, measure the encoders, and write the page."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from embrew.comparison import compare_models
from embrew.files.formats import REPORT
from embrew.files.reading import read_json
from embrew.files.writing import claimed, write_json
from embrew.report.evaluating import read_models, with_poolings
from embrew.report.measuring import Opener, measure_models
from embrew.report.overlaps import find_overlaps
from embrew.report.page import check_packages, write_report
from embrew.report.section import Section, Subject
from embrew.report.sources import NamedSources, Source, read_sources, with_stored_encoder
from embrew.report.task_data import Tasks, data_of

logger = logging.getLogger(__name__)
PAGE = "comparison.html"  # in a sweep or a domain run


def make_report(
    models: Sequence[NamedSources],
    tasks: Tasks,
    output: Path,
    *,
    opener: Opener = Source.open,
    command: str = "",
    measure: bool = True,
) -> tuple[list[str], list[Section]]:
    """Write a report; return its verdict and its sections.

    Results of models that have to be evaluated are stored in a folder beside the page, `NAME.files`.

    Args:
        models: The models, the base first.
        tasks: What those are evaluated on that have an encoder; tasks with a result are not evaluated.
        output: The page; `.json` and `.csv` are written beside it.
        opener: Opens the encoder of a source to measure it.
        command: The command that makes the report.
        measure: Measure the encoders, and look for texts of the tasks in the training rows.

    Raises:
        FileExistsError: another process makes this report.
        ImportError: a package of `embrew[report]` is not installed.
        ValueError: no results and no tasks; no task that can be compared; an encoder that is not that of its results.
    """
    check_packages()
    files = files_of(output)
    with _report_folder(files, models, output, command) if measure else nullcontext():
        models = with_poolings(models, tasks, files)
        candidate = next((i for i, one in enumerate(models) if one.candidate), None)
        comparison = replace(compare_models(read_models(models, tasks, files)), candidate=candidate)
        data, without_data = data_of(comparison, tasks, [one.seeds[0].results for one in models])
        sources = {one.name: one.seeds for one in models}
        subject = Subject(comparison, data, without_data, sources=sources, command=command)
        if measure:  # of several seeds, the first
            with_encoders = {name: (with_stored_encoder(first), *others) for name, (first, *others) in sources.items()}
            subject = measure_models(replace(subject, sources=with_encoders), opener)
            subject = replace(subject, overlaps=find_overlaps(subject))
        return write_report(subject, output)


def report_of_folder(folder: Path, *, command: str = "") -> Path | None:
    """Write `comparison.html` into a sweep or domain run, from its results; encoders are not opened.

    Returns:
        The page; None, and a log line, if a package of `embrew[report]` is not installed.
    """
    output = folder / PAGE
    try:
        make_report(read_sources([str(folder)]), (), output, command=command, measure=False)
    except (ImportError, ValueError) as error:
        logger.info("%s is not written: %s", output, error)
        return None
    return output


def files_of(output: Path) -> Path:
    """Return the folder beside a page for the results of models that are evaluated."""
    return output.with_suffix(".files")


@contextmanager
def _report_folder(files: Path, models: Sequence[NamedSources], output: Path, command: str) -> Iterator[None]:
    """Hold the report's folder, if a model may be evaluated, and write in it what it is of and its state."""
    if not any(source.model for model in models for source in model.seeds):
        yield
        return
    about = {"format": REPORT.number, "page": output.name, "models": [one.name for one in models], "command": command}
    with claimed(files, "comparing in"):
        if (files / REPORT.file).is_file():
            read_json(files / REPORT.file, kind=REPORT)
        write_json(files / REPORT.file, {**about, "finished": False})
        yield
        write_json(files / REPORT.file, {**about, "finished": True})
