"""Results of the models of a report: those that exist, and those that have to be computed first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embrew.comparison import Model, Scored, read_folder
from embrew.comparison.models import check_same_tasks, with_pooling
from embrew.progress import within
from embrew.report.sources import NamedSources, Source
from embrew.report.task_data import Tasks, shown_split
from embrew.report.untrained import choose

logger = logging.getLogger(__name__)


def with_poolings(models: Sequence[NamedSources], tasks: Tasks, files: Path) -> list[NamedSources]:
    """Return the models, with a chosen pooling for those that are bare language models, in their names too.

    Raises:
        ValueError: a model has no results, and there are no tasks to evaluate it on; no task has a dev split to choose
            a pooling on.
    """
    without = [model.name for model in models if any(source.results is None for source in model.seeds)]
    if without and not tasks:
        raise ValueError(
            f"{', '.join(without)}: no results; give --suite NAME or --data DIR to evaluate on, or result folders "
            "(embrew evaluate MODEL --output DIR)"
        )
    chosen = []
    for model in models:
        name, seeds = model.name, []
        for source in model.seeds:
            choice = None
            if source.model and source.results is None and not source.untrained and source.pooling is None:
                choice = choose(source.model, tasks, _results_folder(files, model))
            if choice is not None:
                source = replace(source, pooling=choice.pooling)
                name = with_pooling(model.name, choice.pooling)
            seeds.append(source)
        chosen.append(replace(model, name=name, seeds=tuple(seeds)))
    return chosen


def read_models(models: Sequence[NamedSources], tasks: Tasks, files: Path) -> list[Model]:
    """Return the models with their results; tasks that a model with an encoder lacks are evaluated.

    Args:
        models: The models.
        tasks: What models are evaluated on.
        files: Folder of the report; results are written below `results/NAME`.
    """
    read = []
    for model in models:
        seeds = []
        for number, source in enumerate(model.seeds, start=1):
            scored = read_folder(source.results) if source.results else ()
            there = {(one.result.task, one.result.split) for one in scored}
            wanted = [task for task in tasks if (task.name, shown_split(task)) not in there] if source.model else []
            if wanted:
                folder = _results_folder(files, model)
                is_only = len(model.seeds) == 1
                with within(model.name if is_only else f"{model.name}, seed {number}"):
                    scored += _evaluated(source, wanted, folder if is_only else folder / f"seed-{number}")
            seeds.append(scored)
        read.append(Model(model.name, tuple(seeds)))
        check_same_tasks(read[-1])
    return read


def _results_folder(files: Path, model: NamedSources) -> Path:
    return files / "results" / model.name.replace("/", "--")


def _evaluated(source: Source, tasks: Tasks, folder: Path) -> tuple[Scored, ...]:
    """Return the results of tasks from a folder, in which those that are not finished are evaluated."""
    from embrew.evaluation import evaluate

    logger.info("opening %s", source.model)
    encoder = source.open()
    try:
        results = evaluate(encoder, list(tasks), output_dir=folder, show_progress_bar=True)
    except FileExistsError:
        logger.warning("results of another model or other data in %s are replaced", folder)
        results = evaluate(encoder, list(tasks), output_dir=folder, show_progress_bar=True, overwrite=True)
    names = {(result.task, result.split) for result in results}
    return tuple(one for one in read_folder(folder) if (one.result.task, one.result.split) in names)
