"""Results of the models of a report: those that exist, and those that have to be computed first."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.comparison import Model, Scored, read_folder
from embrew.comparison.models import check_same_tasks, with_pooling
from embrew.progress import within
from embrew.report.cache import Cache
from embrew.report.source import Given, Source
from embrew.report.task_data import Tasks, identity, shown_split
from embrew.report.untrained import choose
from embrew.text_encoder.provenance import versions

logger = logging.getLogger(__name__)


def check_known(given: Sequence[Given], tasks: Tasks) -> None:
    """Raise if a model has no results, and there are no tasks to evaluate it on."""
    without = [one.name for one in given if any(source.results is None for source in one.seeds)]
    if without and not tasks:
        raise ValueError(
            f"{', '.join(without)}: no results; give --suite NAME or --data DIR to evaluate on, or result folders "
            "(embrew evaluate MODEL --output DIR)"
        )


def with_poolings(given: Sequence[Given], tasks: Tasks, files: Path) -> list[Given]:
    """Return the models, with a chosen pooling for those that are bare language models, in their names too.

    Raises:
        ValueError: no task has a dev split to choose it on.
    """
    found = []
    for one in given:
        seeds = []
        for source in one.seeds:
            bare = source.model if source.results is None and not source.untrained and source.pooling is None else None
            choice = None if bare is None else choose(bare, tasks, files / "results" / one.name.replace("/", "--"))
            seeds.append(source if choice is None else replace(source, pooling=choice.pooling))
        chosen = [seed.pooling for seed, source in zip(seeds, one.seeds, strict=True) if seed != source]
        found.append(replace(one, name=with_pooling(one.name, *chosen), seeds=tuple(seeds)))
    return found


def read_models(given: Sequence[Given], tasks: Tasks, files: Path, cache: Cache) -> list[Model]:
    """Return the models with their results; tasks that a model with an encoder lacks are evaluated.

    Args:
        given: The models.
        tasks: What models are evaluated on.
        files: Folder of the report; results are written below `results/NAME`.
        cache: Which evaluations are finished.
    """
    seeds = {(one.name, i): source for one in given for i, source in enumerate(one.seeds)}
    known = {key: read_folder(source.results) if source.results else () for key, source in seeds.items()}
    for number, ((name, i), source) in enumerate(seeds.items(), start=1):
        there = {(scored.result.task, scored.result.split) for scored in known[name, i]}
        wanted = [task for task in tasks if (task.name, shown_split(task)) not in there] if source.model else []
        if not wanted:
            continue
        seed = f", seed {i + 1}" if (name, 1) in seeds else ""
        folder = files / "results" / name.replace("/", "--") / (f"seed-{i + 1}" if seed else "")
        with within(f"{name}{seed} ({number} of {len(seeds)})"):
            new = _evaluated(source, wanted, folder, cache)
        known[name, i] = (*known[name, i], *new)
    models = [_model(one, known) for one in given]
    for model in models:
        check_same_tasks(model)
    return models


def _model(given: Given, known: Mapping[tuple[str, int], Sequence[Scored]]) -> Model:
    seeds = tuple(tuple(known[given.name, i]) for i in range(len(given.seeds)))
    return Model(given.name, seeds)


def _evaluated(source: Source, tasks: Tasks, folder: Path, cache: Cache) -> list[Scored]:
    """Return the results of tasks from a folder, in which those that are not finished are evaluated."""
    key = ["evaluated", source.fingerprint(), [identity(task) for task in tasks], versions(), folder.name]
    done = cache.get(key)
    if done is None or not all((folder / f"{stem}.json").is_file() for stem in done):
        done = cache.put(key, _evaluate(source, tasks, folder))
    names = {tuple(stem.rsplit(".", 1)) for stem in done}
    return [one for one in read_folder(folder) if (one.result.task, one.result.split) in names]


def _evaluate(source: Source, tasks: Tasks, folder: Path) -> list[str]:
    from embrew.evaluation import evaluate

    logger.info("opening %s", source.model)
    encoder = source.open()
    how: dict[str, Any] = {"output_dir": folder, "show_progress_bar": True}
    try:
        results = evaluate(encoder, list(tasks), **how)
    except FileExistsError:
        logger.warning("results of another model or other data in %s are replaced", folder)
        results = evaluate(encoder, list(tasks), overwrite=True, **how)
    return [f"{result.task}.{result.split}" for result in results]
