"""What an evaluation runs: tasks with their settings, checked before a text is encoded, and what a score depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from embrew.evaluation.find import cells, find_task
from embrew.evaluation.generator import find_generator
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.rag import depth_option
from embrew.evaluation.mteb_tasks import load_task, mteb_kind
from embrew.evaluation.overlap import TRIAL_CONTEXT, check_demonstrations
from embrew.evaluation.processes import CorpusChunks
from embrew.evaluation.results import Sidecar
from embrew.evaluation.rows import read_rows
from embrew.evaluation.suites import Suite
from embrew.evaluation.task import EvaluateTask, GridCache, MtebTask, NamedScores, Task, instructed
from embrew.files.checksums import content_hash
from embrew.text_encoder import EncodeOptions, TextEncoder, describe_run


def tasks_to_run(
    encoder: TextEncoder,
    data: Sequence[str | Path | Task | MtebTask] | Suite,
    *,
    split: str | None,
    kind: str | None,
    generator: str | None,
    context: str | None,
) -> list[Task | MtebTask]:
    """Return the tasks of an evaluation, one per cell of a grid, with the generator and the context in their settings.

    Raises:
        ValueError: a setting that a task or the encoder does not have, or demonstrations that are rows of a task.
    """
    tasks: list[Task | MtebTask] = []
    for item in data.tasks if isinstance(data, Suite) else data:
        task = find_task(item, split=split, kind=kind) if isinstance(item, str | Path) else item
        if isinstance(task, Task):
            tasks += cells(_with_settings(task, encoder, generator, context))
            continue
        if context is not None:
            raise ValueError(f"task {task.name}: contexts apply to data folders only; give the folder of its data")
        load_task(task)
        tasks.append(task)
    names = [(task.name, task.split_label) for task in tasks]
    for name, split in names:
        if names.count((name, split)) > 1:
            raise ValueError(f"two tasks are called {name} ({split}); rename a folder, or evaluate it alone")
    if generator is not None and not any(_is_answered(task) for task in tasks):
        kinds = ", ".join(item.name for item in KINDS.values() if "generator" in item.settings)
        raise ValueError(f"generator={generator!r}, but no task of the kind {kinds} asks for answers; leave it out")
    for name in _generators(tasks):
        find_generator(name)
    return tasks


def describe_tasks(
    tasks: Sequence[Task | MtebTask], encoder: TextEncoder, *, batch_tokens: int | None
) -> list[Sidecar]:
    """Return what determines each task's score: the encoder, the task, its settings and the hashes of its data."""
    about = describe_run(encoder, batch_tokens=batch_tokens)
    generators = {name: find_generator(name).as_dict() for name in _generators(tasks)}
    runs = []
    for task in tasks:
        if isinstance(task, MtebTask):
            theirs = load_task(task)
            settings: dict[str, Any] = {"mteb": task.mteb, "subset": task.subset, "instruction": task.instruction}
            split, revision = "+".join(theirs.eval_splits), theirs.metadata.revision
            run = Sidecar(task=task.name, split=split, kind=mteb_kind(theirs), dataset_revision=revision, data={})
        else:
            settings, run = _machine_independent(task, encoder, generators), describe_data(task)
        runs.append(cast("Sidecar", {**about, **run, "settings": {**about["settings"], **settings}}))
    return runs


def describe_data(task: Task) -> Sidecar:
    """Return the names of a task, and the hashes of its data."""
    return {
        "task": task.name,
        "split": task.split_label,
        "kind": task.kind,
        "dataset_revision": content_hash(task.files),
        "data": {file.name: content_hash([file]) for file in task.files},
    }


def _machine_independent(task: Task, encoder: TextEncoder, generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's settings with a description of the generator instead of its path, and a hash of the context."""
    settings = dict(task.settings)
    if task.part is not None:
        settings["part"] = asdict(task.part)
    if settings.get("generator") is not None:
        settings["generator"] = generators[settings["generator"]]
    if settings.get("context") is not None:
        from embrew.storage.parts import context_sha256  # imports torch, which tables do not need

        name, contexts = settings["context"], getattr(encoder, "contexts", {})
        settings["context"] = {"name": name, "sha256": context_sha256(contexts[name])}
    return settings


def _with_settings(task: Task, encoder: TextEncoder, generator: str | None, context: str | None) -> Task:
    """Return the task with a generator, if it has such a setting, and a context, which the encoder must have."""
    added = {"generator": generator if _is_answered(task) else None, "context": context}
    chosen = {name: value for name, value in added.items() if value is not None}
    task = replace(task, settings={**task.settings, **chosen})
    instructed(encoder, task.settings)  # raises if both an instruction and a context are set
    name, contexts = task.settings.get("context"), getattr(encoder, "contexts", {})
    if name is not None and name not in contexts:
        names = ", ".join(contexts) or "none"
        raise ValueError(f"task {task.name}: context={name!r}; this encoder has {names} (embrew context add)")
    if name is not None and name != TRIAL_CONTEXT:
        check_demonstrations([pair.query for pair in contexts[name].context.demonstrations], [task])
    return task


def _is_answered(task: Task | MtebTask) -> bool:
    """Return whether a generator may answer the task's questions."""
    return isinstance(task, Task) and "generator" in KINDS[task.kind].settings


def _generators(tasks: Sequence[Task | MtebTask]) -> set[str]:
    names = {task.settings.get("generator") for task in tasks if isinstance(task, Task)}
    return {name for name in names if name is not None}


def prepare(task: Task, cache: GridCache | None = None, chunks: CorpusChunks | None = None) -> EvaluateTask:
    """Read a task's data once, to evaluate several encoders on it.

    The settings `instruction` and `context`, which every kind has, are applied to the encoder.

    Args:
        cache: Shares data, generators and vectors between the tasks of one grid.
        chunks: Shares a corpus between processes; the task is evaluated once.
    """
    kind, cache = KINDS[task.kind], cache or GridCache()
    reading = {name: task.settings[name] for name in kind.reading if name in task.settings}
    scoring = {name: task.settings[name] for name in kind.scoring if name in task.settings}

    def read() -> Any:
        return read_rows(task, kind, **reading) if kind.read is None else kind.read(task, **reading)

    data = cache.get("data", (task.files, task.split, repr(reading)), read) if kind.grid else read()
    shared = (cache,) if kind.grid else (chunks,) if kind.shared else ()

    def evaluate(encoder: TextEncoder, options: EncodeOptions) -> NamedScores:
        return kind.score(instructed(encoder, task.settings), data, *shared, **scoring, **options)

    return evaluate


def check_grid(encoder: TextEncoder, tasks: Sequence[Task | MtebTask], options: EncodeOptions) -> None:
    """Encode one word at each depth of the cells of grids, to verify that the encoder has their layers and dimensions.

    Raises:
        ValueError: it lacks a depth or a size.
    """
    widths: dict[int | None, int] = {}
    for task in tasks:
        if isinstance(task, MtebTask) or not KINDS[task.kind].grid:
            continue
        depth, size = task.settings.get("layers"), task.settings.get("dims")
        try:
            if depth not in widths:
                quiet: EncodeOptions = {**options, **depth_option(encoder, depth), "show_progress_bar": False}
                widths[depth] = np.asarray(encoder.encode_query(["word"], **quiet)).shape[1]
            if size is not None and size > widths[depth]:
                raise ValueError(
                    f"dims={size}, but the encoder's vectors have {widths[depth]} dimensions; choose up to that"
                )
        except ValueError as error:
            raise ValueError(f"task {task.name}: {error}") from error
