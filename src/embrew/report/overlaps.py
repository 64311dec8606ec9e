"""Rows that models were trained on and that hold a text of a task they are compared on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from embrew.data.reading import data_identity, expand, is_beir
from embrew.files.checksums import file_sha256
from embrew.files.formats import STAGE
from embrew.files.names import LOCAL_PREFIX, base_name
from embrew.files.reading import read_json
from embrew.recipe import DataConfig
from embrew.recipe.stage import StageConfig
from embrew.report.section import Subject
from embrew.report.sources import ModelSource

logger = logging.getLogger(__name__)


def find_overlaps(subject: Subject) -> dict[str, dict[str, list[str]]]:
    """Return by model, of several seeds for the first, lines about overlaps and about data `not_checked`.

    Overlaps are `found` with queries, relevant documents and other texts; `documents` has those with whole corpora, of
    which most documents answer no query.
    """
    return {name: _overlaps_of_model(subject, subject.sources[name][0]) for name in subject.names}


def _overlaps_of_model(subject: Subject, source: ModelSource) -> dict[str, list[str]]:
    lines: list[str] = []
    documents: list[str] = []
    not_checked: list[str] = []
    recipe, reason = None, ""
    try:
        recipe = source.recipe()
    except (OSError, ValueError) as error:  # files that a page must not fail for, here and below
        reason = f"the recipe cannot be read ({source.public_text(error)})"
    if recipe is None:
        reason = reason or source.unknown or "the run that trained the model is not known"
    elif not subject.data:
        reason = "the data of no task are at hand"
    if reason and not source.untrained:
        not_checked.append(f"training data: not checked, because {reason}")
    trained = source.stages()
    for i, stage in enumerate(recipe.stages if recipe and not reason else ()):
        for key, config in stage.placed_datasets if stage.name in trained else ():
            names = ", ".join(map(base_name, config.paths))
            try:
                unavailable = _unavailable(source, f"stages.{i}.{key}.path", config)
                if unavailable is None:
                    overlaps, of_corpora = _overlap_lines(names, stage, config, subject)
                    lines, documents = lines + overlaps, documents + of_corpora
            except (OSError, ValueError) as error:
                unavailable = f"its rows cannot be read ({source.public_text(error)})"
            if unavailable:
                not_checked.append(f"training data {names}: not checked, because {unavailable}")
    about = {"found": lines, "documents": documents, "not_checked": not_checked}
    return {key: list(dict.fromkeys(several)) for key, several in about.items()}


def _unavailable(source: ModelSource, recipe_key: str, config: DataConfig) -> str | None:
    """Return why the rows of a data set cannot be read as they were trained on; None if they can.

    Args:
        source: The model.
        recipe_key: Key of the data set's path in the recipe.
        config: The data set.
    """
    assert source.run is not None
    assert source.stage is not None
    file = source.run / source.stage / STAGE.file
    content: Mapping[str, Any] = read_json(file, kind=STAGE).get("content", {}) if file.is_file() else {}
    for number, path in enumerate(config.paths):
        if path.startswith(LOCAL_PREFIX):
            return "its folder is not stored in the run"
        try:
            is_there = Path(expand(path)).exists()
        except ValueError as error:
            return str(error)
        if not is_there:
            return f"{path} is not on this machine"
        key = recipe_key if isinstance(config.path, str) else f"{recipe_key}.{number}"
        trained = content.get(key, {}).get("sha256")
        if trained and data_identity(path, split=config.split, sha256=file_sha256).get("sha256") != trained:
            return "its files have changed since training"
    return None


def _overlap_lines(names: str, stage: StageConfig, config: DataConfig, subject: Subject) -> tuple[list[str], list[str]]:
    """Return lines about overlaps, and about those with whole corpora."""
    from embrew.evaluation.overlap import count_overlaps, hash_texts, overlap_lines, relevant_texts, task_texts
    from embrew.recipe import build

    logger.info("%s: looking for texts of the tasks among the training rows", names)
    sets = dict(chain.from_iterable(task_texts(task) for task in subject.data.values()))
    searched = [task for task in subject.data.values() if is_beir(task.path)]
    corpora = {f"{task.name} documents" for task in searched}
    texts = hash_texts(sets | {f"{task.name} relevant documents": relevant_texts(task) for task in searched})
    rows = build.rows(config, build.objective(stage.objective), max_rows=config.max_rows)
    lines: tuple[list[str], list[str]] = [], []
    for name, shared in count_overlaps(rows, texts).items():
        if shared["rows"]:
            lines[name in corpora].extend(overlap_lines(names, len(rows), {name: shared}))
    return lines
