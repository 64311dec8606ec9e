"""Make a report: evaluate what is missing, compare, measure the encoders, and write the page."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.evaluation.report import Result
from embrew.files.checksums import sealed
from embrew.files.formats import REPORT
from embrew.files.names import shown_path
from embrew.files.reading import read_json
from embrew.files.writing import claimed, write_json
from embrew.progress import progress, within
from embrew.report.comparison import compare_models
from embrew.report.cost import measure_cost
from embrew.report.models import Model, check_same_tasks, read_folder, with_pooling
from embrew.report.overlaps import find_overlaps
from embrew.report.page import check_packages, write_report
from embrew.report.sample import measure_vectors
from embrew.report.section import Subject
from embrew.report.sources import Source, read_sources
from embrew.report.task_data import Tasks, data_of
from embrew.report.untrained import choose_pooling
from embrew.text_encoder import TextEncoder, model_hash

logger = logging.getLogger(__name__)
PAGE = "comparison.html"  # in a sweep
Sources = Mapping[str, Sequence[Source]]
Opener = Callable[[Source], TextEncoder]


def make_report(
    sources: Sources,
    tasks: Tasks,
    output: Path,
    *,
    opener: Opener = Source.open,
    command: str = "",
    measure: bool = True,
) -> dict[str, Any]:
    """Write a report; return the content of its JSON file.

    Results of models that have to be evaluated are stored in a folder beside the page, `NAME.files`.

    Args:
        sources: The models by name, the base first: one source per seed.
        tasks: What those are evaluated on that have an encoder; tasks with a result are not evaluated.
        output: The page; `.json` and `.csv` are written beside it.
        opener: Opens the encoder of a source to measure it.
        command: The command that makes the report.
        measure: Measure the encoders, and look for texts of the tasks in the training rows.

    Raises:
        FileExistsError: another process makes this report.
        ImportError: a package of `embrew[report]` is not installed.
        ValueError: no results and no tasks; no task that can be compared.
    """
    check_packages()
    unevaluated = [name for name, seeds in sources.items() if any(source.results is None for source in seeds)]
    if unevaluated and not tasks:
        raise ValueError(
            f"{', '.join(unevaluated)}: no results; give --suite NAME or --data DIR to evaluate on, or result folders "
            "(embrew evaluate MODEL --output DIR)"
        )
    about = {"format": REPORT.number, "page": output.name, "models": list(sources), "command": command}
    may_evaluate = measure and any(source.model and not source.stored for seeds in sources.values() for source in seeds)
    with _report_folder(files_of(output), about) if may_evaluate else nullcontext():
        models, sources = _read_models(sources, tasks, output)
        comparison = compare_models(models)
        data, without_data = data_of(comparison, tasks, [first.results for first, *_ in sources.values()])
        subject = Subject(comparison, data, without_data, sources=sources, command=command)
        if measure:  # of several seeds, the first
            subject = _measured(subject, opener)
            subject = replace(subject, overlaps=find_overlaps(subject))
        return write_report(subject, output)


def report_of_folder(folder: Path, *, command: str = "") -> Path | None:
    """Write `comparison.html` into a sweep, from its results; encoders are not opened.

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


def results_of(output: Path, name: str) -> Path:
    """Return the folder for the results of a model that is evaluated for a page."""
    return files_of(output) / "results" / name.replace("/", "--")


@contextmanager
def _report_folder(files: Path, about: Mapping[str, Any]) -> Iterator[None]:
    """Hold the report's folder, and write in it what it is of and its state."""
    with claimed(files, "comparing in"):
        if (files / REPORT.file).is_file():
            read_json(files / REPORT.file, kind=REPORT)
        write_json(files / REPORT.file, sealed({**about, "finished": False}))
        yield
        write_json(files / REPORT.file, sealed({**about, "finished": True}))


def _read_models(sources: Sources, tasks: Tasks, output: Path) -> tuple[list[Model], Sources]:
    """Return models with their results, evaluated where an encoder lacks them, and sources with chosen poolings."""
    models: list[Model] = []
    with_poolings: dict[str, Sequence[Source]] = {}
    for name, seeds in sources.items():
        folder = results_of(output, name)
        scored: list[tuple[Result, ...]] = []
        resolved: list[Source] = []
        for number, source in enumerate(seeds, start=1):
            choice = None
            if source.model and not (source.results or source.untrained or source.pooling):
                choice = choose_pooling(source.model, tasks, folder)
            resolved.append(replace(source, pooling=choice.pooling) if choice else source)
            label = name if len(seeds) == 1 else f"{name}, seed {number}"
            with within(label):
                scored.append(_results(resolved[-1], tasks, folder if label == name else folder / f"seed-{number}"))
        chosen = [new.pooling for old, new in zip(seeds, resolved, strict=True) if old.pooling is None]
        models.append(Model(with_pooling(name, *chosen), tuple(scored)))
        with_poolings[models[-1].name] = resolved
        check_same_tasks(models[-1])
    return models, with_poolings


def _results(source: Source, tasks: Tasks, folder: Path) -> tuple[Result, ...]:
    """Return the results of a source; tasks that it lacks are evaluated, and their results written into a folder."""
    from embrew.evaluation import evaluate

    scored = read_folder(source.results) if source.results else ()
    finished = {(result.task, result.split) for result in scored}
    wanted = [task for task in tasks if (task.name, task.split_label) not in finished]
    if not wanted or source.model is None or source.stored:
        return scored
    logger.info("opening %s", source.model)
    encoder = source.open()
    try:
        results = evaluate(encoder, wanted, output_dir=folder, show_progress_bar=True)
    except FileExistsError:
        logger.warning("results of another model or other data in %s are replaced", folder)
        results = evaluate(encoder, wanted, output_dir=folder, show_progress_bar=True, overwrite=True)
    names = {(result.task, result.split) for result in results}
    return scored + tuple(result for result in read_folder(folder) if (result.task, result.split) in names)


def _measured(subject: Subject, opener: Opener) -> Subject:
    """Return the subject with costs and figures of vectors of the models whose encoders are those of their results."""
    sources, costs, vectors = dict(subject.sources), {}, {}
    models = [model for model in subject.comparison.models if sources[model.name][0].model is not None]
    with progress(len(models), "measuring", "model", show=bool(models)) as bar:
        for model in models:
            first, *others = sources[model.name]
            with within(model.name):
                encoder = _open(model, first, opener)
                if isinstance(encoder, str):
                    sources[model.name] = (Source(results=first.results, unknown=encoder), *others)
                else:
                    costs[model.name] = measure_cost(encoder, subject)
                    vectors[model.name] = measure_vectors(encoder, subject.data)
                del encoder
                gc.collect()
            bar.update()
    return replace(subject, costs=costs, vectors=vectors, sources=sources)


def _open(model: Model, source: Source, opener: Opener) -> TextEncoder | str:
    """Return the encoder of a model's results; a sentence if it is not known."""
    assert source.model is not None
    name = shown_path(Path(source.model))
    logger.info("opening %s%s", source.model, f", which {source.results} names" if source.stored else "")
    try:
        with _without_downloads() if source.stored else nullcontext():
            encoder = opener(source)
    except (ImportError, OSError, ValueError) as error:
        if not source.stored:
            raise
        logger.warning("%s cannot be opened: %s", source.model, error)
        return f"{name} cannot be opened"
    hashes = {str(scored.run["model_hash"]) for scored in model.seeds[0] if "model_hash" in scored.run}
    return f"{name} has another model hash than the results" if hashes - {model_hash(encoder)} else encoder


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Read models of the Hub from the cache only: what a file in a folder of results names downloads nothing."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
