"""Make a report: evaluate what is missing, compare, measure the encoders, and write the page."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from embrew.data.reading import expand
from embrew.evaluation.find import find_task
from embrew.evaluation.results import Result, Sidecar, read_paths
from embrew.evaluation.task import COMMON_SETTINGS, PART_PREFIX, DevPart, MtebTask, Task
from embrew.files.checksums import content_hash, sealed
from embrew.files.formats import REPORT
from embrew.files.names import shown_path
from embrew.files.reading import read_json
from embrew.files.writing import claimed, write_json
from embrew.progress import progress, within
from embrew.report.comparison import (
    MODEL_SETTINGS,
    Comparison,
    Model,
    check_same_tasks,
    compare_models,
    read_folder,
    with_pooling,
)
from embrew.report.cost import measure_cost
from embrew.report.geometry import measure_vectors
from embrew.report.overlaps import find_overlaps
from embrew.report.page import check_packages, write_report
from embrew.report.section import Subject, Values
from embrew.report.sources import ModelSource, read_sources
from embrew.report.untrained import choose_pooling
from embrew.text_encoder import TextEncoder, model_hash

logger = logging.getLogger(__name__)
Tasks = Sequence[Task | MtebTask]
PAGE = "comparison.html"  # in a sweep
Sources = Mapping[str, Sequence[ModelSource]]
Opener = Callable[[ModelSource], TextEncoder]


def task_of(result: Result, tasks: Tasks = (), stored: Sequence[Path] = ()) -> Task | None:
    """Return the task of a result with its data; None if data with the same content is not at hand.

    Folders are looked for among the given tasks, then those that were stored with results, then in `$EMBREW_DATA`, by
    the task's name.
    """
    name, split = result.task, result.split
    for task in tasks:
        if isinstance(task, Task) and (task.name, task.split_label) == (name, split) and _is_same(task, result.run):
            return task
    folders = [*stored, *([Path(expand("$EMBREW_DATA")) / name] if "EMBREW_DATA" in os.environ else [])]
    candidates = (_task_in(folder, result) for folder in dict.fromkeys(folders) if folder.exists())
    return next((task for task in candidates if task is not None), None)


def _task_in(folder: Path, result: Result) -> Task | None:
    """Return the task of a result with the data of a folder or file; None if their content is another."""
    settings = {key: value for key, value in result.run.get("settings", {}).items() if key not in MODEL_SETTINGS}
    part = settings.pop("part", None)
    try:
        task = find_task(
            folder,
            split=result.split.removeprefix(PART_PREFIX),
            kind=result.kind,
            name=result.task,
            part=None if part is None else DevPart(**{**part, "left_out": tuple(part.get("left_out", ()))}),
            **settings,
        )
    except (OSError, ValueError):  # another folder of the same name
        return None
    return task if _is_same(task, result.run) else None


def data_of(
    comparison: Comparison, tasks: Tasks = (), results: Sequence[Path | None] = ()
) -> tuple[dict[tuple[str, str], Task], dict[tuple[str, str], str]]:
    """Return the tasks of a comparison whose data are at hand, and why data that were stored are not used.

    An instruction is kept if all models have the same.

    Args:
        comparison: The models and their tasks.
        tasks: Tasks that a user gave.
        results: Folders of results, which may say where the data were.
    """
    data, reasons = {}, {}
    paths = [read_paths(folder).data for folder in results if folder is not None]
    for compared in comparison.tasks:
        stored = [of_folder[".".join(compared.key)] for of_folder in paths if ".".join(compared.key) in of_folder]
        task = task_of(compared.first, tasks, stored)
        if task is not None:
            instructions = {seeds[0].run.get("settings", {}).get("instruction") for seeds in compared.results}
            settings = {name: value for name, value in task.settings.items() if name not in COMMON_SETTINGS}
            if len(instructions) == 1 and instructions != {None}:
                settings["instruction"] = instructions.pop()
            data[compared.key] = replace(task, settings=settings)
        elif stored:
            what = "has changed since" if stored[0].exists() else "is no longer on this machine"
            reasons[compared.key] = f"{shown_path(stored[0])} {what}"
    return data, reasons


def _is_same(task: Task, run: Sidecar) -> bool:
    return run.get("dataset_revision") == content_hash(task.files)


def make_report(
    sources: Sources,
    tasks: Tasks,
    output: Path,
    *,
    opener: Opener = ModelSource.open,
    command: str = "",
    measure: bool = True,
) -> Values:
    """Write a report; return the content of its JSON file.

    Results of models that have to be evaluated are stored in a folder beside the page, `NAME.files`.

    Args:
        sources: The models by name, the base first: one source per seed.
        tasks: What those are evaluated on that have an encoder; tasks with a result are not evaluated.
        output: The page; `.json` is written beside it.
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
    with _report_folder(report_files(output), about) if may_evaluate else nullcontext():
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


def report_files(output: Path) -> Path:
    """Return the folder beside a page for the results of models that are evaluated."""
    return output.with_suffix(".files")


def results_of(output: Path, name: str) -> Path:
    """Return the folder for the results of a model that is evaluated for a page."""
    return report_files(output) / "results" / name.replace("/", "--")


@contextmanager
def _report_folder(files: Path, about: Values) -> Iterator[None]:
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
    with_poolings: dict[str, Sequence[ModelSource]] = {}
    for name, seeds in sources.items():
        folder = results_of(output, name)
        scored: list[tuple[Result, ...]] = []
        resolved: list[ModelSource] = []
        for number, source in enumerate(seeds, start=1):
            choice = None
            seed_folder = folder if len(seeds) == 1 else folder / f"seed-{number}"
            if source.model and not (source.results or source.untrained or source.pooling):
                try:
                    choice = choose_pooling(source.model, tasks, seed_folder)
                except FileExistsError:
                    choice = choose_pooling(source.model, tasks, seed_folder, overwrite=True)
            resolved.append(replace(source, pooling=choice.pooling) if choice else source)
            with within(name if len(seeds) == 1 else f"{name}, seed {number}"):
                scored.append(_results(resolved[-1], tasks, seed_folder))
        chosen = [new.pooling for old, new in zip(seeds, resolved, strict=True) if old.pooling is None]
        models.append(Model(with_pooling(name, *chosen), tuple(scored)))
        with_poolings[models[-1].name] = resolved
        check_same_tasks(models[-1])
    return models, with_poolings


def _results(source: ModelSource, tasks: Tasks, folder: Path) -> tuple[Result, ...]:
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
                    sources[model.name] = (ModelSource(results=first.results, unknown=encoder), *others)
                else:
                    costs[model.name] = measure_cost(encoder, subject)
                    vectors[model.name] = measure_vectors(encoder, subject.data)
                del encoder
                gc.collect()
            bar.update()
    return replace(subject, costs=costs, vectors=vectors, sources=sources)


def _open(model: Model, source: ModelSource, opener: Opener) -> TextEncoder | str:
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
