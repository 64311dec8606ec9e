"""Rows that models were trained on and that hold a text of a task they are compared on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from embrew.data.reading import data_identity, expand, files_of
from embrew.files.checksums import file_sha256
from embrew.files.formats import STAGE
from embrew.files.names import LOCAL_PREFIX, base_name
from embrew.files.reading import read_json
from embrew.recipe import DataConfig, Recipe
from embrew.report.cache import Cache
from embrew.report.source import Source
from embrew.report.subject import Overlaps, Subject
from embrew.report.task_data import identity

logger = logging.getLogger(__name__)


def find_overlaps(subject: Subject, cache: Cache) -> dict[str, Overlaps]:
    """Return overlaps by model; of several seeds, those of the first. Rows are read once per data set."""
    return {model.name: _of_model(subject, model.name, cache) for model in subject.comparison.models}


def _of_model(subject: Subject, model: str, cache: Cache) -> Overlaps:
    source = subject.sources[model][0]
    if source.untrained:
        return Overlaps(())
    try:
        recipe = source.recipe()
    except (OSError, ValueError) as error:  # files that a page must not fail for, here and below
        return Overlaps((), (f"training data: not checked, because the recipe cannot be read ({source.shown(error)})",))
    if recipe is None:
        unknown = source.unknown or "the run that trained the model is not known"
        return Overlaps((), (f"training data: not checked, because {unknown}",))
    if not subject.data:
        return Overlaps((), ("training data: not checked, because the data of no task are at hand",))
    tasks: list[Any] = [identity(task) for task in subject.data.values()]
    found, not_checked = list[str](), list[str]()
    for stage, number, config in _data_sets(recipe, source):
        names = ", ".join(map(base_name, _paths(config)))
        try:
            reason = _unavailable(source, stage, number, config)
            if reason is None:
                settings = [config.model_dump(mode="json"), recipe.stages[stage].objective]
                key = ["overlap", *settings, _stamps(config), tasks]
                lines = cache.get(key)
                found += cache.put(key, _lines(names, recipe, stage, config, subject)) if lines is None else lines
        except (OSError, ValueError) as error:
            reason = f"its rows cannot be read ({source.shown(error)})"
        if reason:
            not_checked.append(f"training data {names}: not checked, because {reason}")
    return Overlaps(tuple(dict.fromkeys(found)), tuple(dict.fromkeys(not_checked)))


def _data_sets(recipe: Recipe, source: Source) -> Iterator[tuple[int, int | None, DataConfig]]:
    """Yield the data sets of the stages that a model was trained in: stage, number among several, settings."""
    trained = source.stages()
    for i, stage in enumerate(recipe.stages):
        if stage.name in trained:
            several = isinstance(stage.data, list)
            for number, config in enumerate(stage.datasets):
                yield i, number if several else None, config


def _unavailable(source: Source, stage: int, number: int | None, config: DataConfig) -> str | None:
    """Return why the rows of a data set cannot be read as they were trained on; None if they can."""
    assert source.run is not None
    assert source.stage is not None
    file = source.run / source.stage / STAGE.file
    content: Mapping[str, Any] = read_json(file, kind=STAGE).get("content", {}) if file.is_file() else {}
    place = f"stages.{stage}.data.path" if number is None else f"stages.{stage}.data.{number}.path"
    for n, path in enumerate(_paths(config)):
        if path.startswith(LOCAL_PREFIX):
            return "its folder is not stored in the run"
        try:
            there = Path(expand(path)).exists()
        except ValueError as error:
            return str(error)
        if not there:
            return f"{path} is not on this machine"
        known = content.get(place if isinstance(config.path, str) else f"{place}.{n}", {}).get("sha256")
        if known and data_identity(path, split=config.split, sha256=file_sha256).get("sha256") != known:
            return "its files have changed since training"
    return None


def _lines(names: str, recipe: Recipe, stage: int, config: DataConfig, subject: Subject) -> list[str]:
    from embrew import assembly
    from embrew.data.overlap import in_words, known_texts, overlap
    from embrew.evaluation.task_texts import task_texts

    logger.info("%s: looking for texts of the tasks among the training rows", names)
    known = known_texts(dict(chain.from_iterable(task_texts(task) for task in subject.data.values())))
    rows = assembly.rows(config, assembly.objective(recipe.stages[stage].objective), max_rows=config.max_rows)
    found = overlap(rows, known)
    return in_words(names, len(rows), found) if any(one["rows"] for one in found.values()) else []


def _stamps(config: DataConfig) -> list[Any]:
    """Return names, sizes and times of change of the files of a data set."""
    files = [file for path in _paths(config) for file in files_of(Path(expand(path)), config.split)]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _paths(config: DataConfig) -> list[str]:
    return [config.path] if isinstance(config.path, str) else list(config.path)
