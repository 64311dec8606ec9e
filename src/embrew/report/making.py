"""Make a report: evaluate what is missing, compare, measure the encoders, and write the page."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from embrew.comparison import compare_models
from embrew.files.formats import REPORT
from embrew.files.locks import claimed
from embrew.files.reading import read_json
from embrew.files.writing import write_json
from embrew.report.cache import Cache
from embrew.report.evaluating import check_known, read_models, with_poolings
from embrew.report.inputs import read_inputs, with_stored
from embrew.report.measuring import Opener, measured, needs_encoders
from embrew.report.overlaps import find_overlaps
from embrew.report.packages import check_packages
from embrew.report.page import write_report
from embrew.report.section import Section
from embrew.report.source import Given, Source
from embrew.report.subject import Subject
from embrew.report.task_data import Tasks, data_of

logger = logging.getLogger(__name__)
PAGE = "comparison.html"  # in a sweep or a domain run


def make_report(
    given: Sequence[Given],
    tasks: Tasks,
    output: Path,
    *,
    opener: Opener = Source.open,
    command: str = "",
    map_method: str = "pca",
    measure: bool = True,
) -> tuple[Subject, list[Section]]:
    """Write a report; return what it is about, and its sections.

    Results and measurements are kept in a folder beside the page, `NAME.files`. If an encoder has to be measured, the
    page is first written without measurements.

    Args:
        given: The models, the base first.
        tasks: What those are evaluated on that have an encoder; tasks with a result are not evaluated.
        output: The page; `.json` and `.csv` are written beside it.
        opener: Opens the encoder of a source to measure it.
        command: The command that makes the report.
        map_method: `pca` or `tsne`.
        measure: Measure the encoders, and look for texts of the tasks in the training rows.

    Raises:
        FileExistsError: another process makes this report.
        ImportError: a package of `embrew[report]` is not installed.
        ValueError: no results and no tasks; no task that can be compared; an encoder that is not that of its results.
    """
    check_packages()
    files = files_of(output)
    cache = Cache(files / "cache")
    check_known(given, tasks)
    with _kept(files, with_stored(given), output, command) if measure else nullcontext():
        given = with_poolings(given, tasks, files)
        known = with_stored(given) if measure else given
        models = read_models(given, tasks, files, cache)
        candidate = next((i for i, one in enumerate(given) if one.candidate), None)
        comparison = replace(compare_models(models), candidate=candidate)
        data, without_data = data_of(comparison, tasks, [one.seeds[0].results for one in given])
        subject = Subject(
            comparison,
            data=data,
            without_data=without_data,
            sources={one.name: one.seeds for one in known},
            map_method=map_method,
            command=command,
        )
        if measure:
            if needs_encoders(subject, cache):
                write_report(subject, output)
                logger.info("%s has the scores; encoders are measured next", output)
            subject = measured(subject, cache, opener)
            subject = replace(subject, overlaps=find_overlaps(subject, cache))
        sections = write_report(subject, output)
        cache.prune()
    return subject, sections


def report_of_folder(folder: Path, *, command: str = "") -> Path | None:
    """Write `comparison.html` into a sweep or domain run, from its results; encoders are not opened.

    Returns:
        The page; None, and a log line, if a package of `embrew[report]` is not installed.
    """
    output = folder / PAGE
    try:
        make_report(read_inputs([str(folder)]), (), output, command=command, measure=False)
    except (ImportError, ValueError) as error:
        logger.info("%s is not written: %s", output, error)
        return None
    return output


def files_of(output: Path) -> Path:
    """Return the folder beside a page that keeps results and measurements."""
    return output.with_suffix(".files")


@contextmanager
def _kept(files: Path, given: Sequence[Given], output: Path, command: str) -> Iterator[None]:
    """Hold the report's folder, if an encoder is known, and write in it what it is of and whether it is finished."""
    if not any(source.model for one in given for source in one.seeds):
        yield
        return
    about = {"format": REPORT.number, "page": output.name, "models": [one.name for one in given], "command": command}
    with claimed(files, "comparing in"):
        if (files / REPORT.file).is_file():
            read_json(files / REPORT.file, kind=REPORT)
        write_json(files / REPORT.file, {**about, "finished": False})
        yield
        write_json(files / REPORT.file, {**about, "finished": True})
