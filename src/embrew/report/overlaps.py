"""Rows that models were trained on and that hold a text of a task they are compared on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from embrew.data.reading import data_identity, expand
from embrew.files.checksums import file_sha256
from embrew.files.formats import STAGE
from embrew.files.names import LOCAL_PREFIX, base_name
from embrew.files.reading import read_json
from embrew.recipe import DataConfig, Recipe
from embrew.report.section import Overlaps, Subject
from embrew.report.sources import Source

logger = logging.getLogger(__name__)


def find_overlaps(subject: Subject) -> dict[str, Overlaps]:
    """Return overlaps by model; of several seeds, those of the first."""
    return {name: _of_model(subject, subject.sources[name][0]) for name in subject.names}


def _of_model(subject: Subject, source: Source) -> Overlaps:
    if source.untrained:
        return Overlaps(())
    reason = ""
    try:
        recipe = source.recipe()
        if recipe is None:
            reason = source.unknown or "the run that trained the model is not known"
        elif not subject.data:
            reason = "the data of no task are at hand"
    except (OSError, ValueError) as error:  # files that a page must not fail for, here and below
        recipe, reason = None, f"the recipe cannot be read ({source.shown(error)})"
    if recipe is None or reason:
        return Overlaps((), (f"training data: not checked, because {reason}",))
    lines, not_checked = list[str](), list[str]()
    for stage, number, config in _data_sets(recipe, source):
        names = ", ".join(map(base_name, _paths(config)))
        try:
            unavailable = _unavailable(source, stage, number, config)
            if unavailable is None:
                lines += _lines(names, recipe, stage, config, subject)
        except (OSError, ValueError) as error:
            unavailable = f"its rows cannot be read ({source.shown(error)})"
        if unavailable:
            not_checked.append(f"training data {names}: not checked, because {unavailable}")
    return Overlaps(tuple(dict.fromkeys(lines)), tuple(dict.fromkeys(not_checked)))


def _data_sets(recipe: Recipe, source: Source) -> Iterator[tuple[int, int | None, DataConfig]]:
    """Yield the data sets of the stages that a model was trained in: stage, number among several, settings."""
    trained = source.stages()
    for i, stage in enumerate(recipe.stages):
        if stage.name in trained:
            for number, config in enumerate(stage.datasets):
                yield i, number if isinstance(stage.data, list) else None, config


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
        trained = content.get(place if isinstance(config.path, str) else f"{place}.{n}", {}).get("sha256")
        if trained and data_identity(path, split=config.split, sha256=file_sha256).get("sha256") != trained:
            return "its files have changed since training"
    return None


def _lines(names: str, recipe: Recipe, stage: int, config: DataConfig, subject: Subject) -> list[str]:
    from embrew import assembly
    from embrew.evaluation.overlap import in_words, known_texts, overlap
    from embrew.evaluation.task_texts import task_texts

    logger.info("%s: looking for texts of the tasks among the training rows", names)
    texts = known_texts(dict(chain.from_iterable(task_texts(task) for task in subject.data.values())))
    rows = assembly.rows(config, assembly.objective(recipe.stages[stage].objective), max_rows=config.max_rows)
    overlaps = overlap(rows, texts)
    return in_words(names, len(rows), overlaps) if any(one["rows"] for one in overlaps.values()) else []


def _paths(config: DataConfig) -> list[str]:
    return [config.path] if isinstance(config.path, str) else list(config.path)
