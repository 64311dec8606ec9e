"""Evaluate encoders on data folders and suites: nine kinds of task, without network or mteb."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from embrew.evaluation.corpus_share import CorpusShare, FinishedByOthers
from embrew.evaluation.find import find_task
from embrew.evaluation.generator import find_generator
from embrew.evaluation.grid import cells, check_grid
from embrew.evaluation.grid_cache import GridCache
from embrew.evaluation.instructed import instructed
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.sts import Protocol
from embrew.evaluation.mteb_tasks import MtebTask, evaluate_mteb, kind_of, load_task
from embrew.evaluation.processes import Processes
from embrew.evaluation.report import Result, averages, finished, grid_table, table, write_result
from embrew.evaluation.scoring import check_settings, evaluate_task
from embrew.evaluation.several import Several
from embrew.evaluation.suites import Suite, list_suites, read_suite
from embrew.evaluation.task import Task
from embrew.evaluation.task_texts import TRIED, check_apart
from embrew.files.checksums import content_hash
from embrew.progress import in_context, within
from embrew.text_encoder.interface import TextEncoder, encode_options, fixed
from embrew.text_encoder.provenance import describe_run

__all__ = [
    "MtebTask",
    "Processes",
    "Result",
    "Suite",
    "Task",
    "TextEncoder",
    "averages",
    "evaluate",
    "find_task",
    "grid_table",
    "list_suites",
    "read_suite",
    "table",
]

logger = logging.getLogger(__name__)


def evaluate(
    encoder: TextEncoder,
    data: Sequence[str | Path | Task | MtebTask] | Suite,
    *,
    output_dir: str | Path | None = None,
    split: str | None = None,
    kind: str | None = None,
    sts_protocol: Protocol | None = None,
    generator: str | None = None,
    batch_tokens: int | None = None,
    context: str | None = None,
    overwrite: bool = False,
    processes: Processes | None = None,
    show_progress_bar: bool = False,
) -> list[Result]:
    """Evaluate an `Encoder` or a `SentenceTransformer` on data folders or a suite.

    Sentence pairs and texts are encoded by `encode` (with the default prompt, if any), queries by `encode_query`,
    documents by `encode_document`. All folders are checked before the first text is encoded.

    Args:
        data: Folders (`$NAME` is replaced from the environment), tasks (of MTEB too, by name), or a suite.
        output_dir: Folder for one JSON file per task, with another that describes model, data and settings. A task
            with a file for the same model, data and settings is skipped; files of others are not replaced.
        split: Split to evaluate, for folders; default: `test`, else `dev`.
        kind: Kind of task, for folders; default: by the columns.
        sts_protocol: For folders of scored pairs: `all` pairs together (the default), or the mean `per-subset`.
        generator: A causal LM (`nano`, a folder, a Hub id) that answers the questions of `rag` tasks.
        batch_tokens: Padded tokens per batch, for encoders that have this option.
        context: Name of a context of the encoder, for all tasks: a prefix of both sides of symmetric tasks, and of
            the queries of asymmetric ones.
        overwrite: Evaluate every task again, and replace the results in `output_dir`.
        processes: The processes of a launch (`Processes.of_launch()`), which share tasks and corpora and all return
            the results; `output_dir` must be one folder for all of them. Default: this one alone.

    Raises:
        FileExistsError: `output_dir` holds results of another model, other data or other settings.
        ValueError: demonstrations of a context are rows of a task.

    Examples:
        >>> [result.main_score for result in evaluate(encoder, ["$EMBREW_DATA/STSB"])]  # doctest: +SKIP
        [0.8203]
    """
    if isinstance(data, str | Path):
        raise TypeError(f"data={data!r}; give a list of folders")
    given = data.tasks if isinstance(data, Suite) else data
    found = [_find(one, split, kind, sts_protocol) if isinstance(one, str | Path) else one for one in given]
    tasks = _checked([cell for one in found for cell in _cells(_in_context(one, encoder, context), generator)], encoder)
    if generator is not None and not any(_has_setting(task, "generator") for task in tasks):
        kinds = ", ".join(kind.name for kind in KINDS.values() if "generator" in kind.settings)
        raise ValueError(f"generator={generator!r}, but no task of the kind {kinds} asks for answers; leave it out")
    options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    folder = Path(output_dir) if output_dir else None
    sidecar = describe_run(encoder, batch_tokens=batch_tokens) if folder else {}
    generators = _generators(tasks)
    runs = [_run_of(task, sidecar, generators, encoder) if folder else {} for task in tasks]
    known = [finished(folder, run) if folder and not overwrite else None for run in runs]
    waiting = [task for task, before in zip(tasks, known, strict=True) if before is None and isinstance(task, Task)]
    check_grid(encoder, [task for task in waiting if KINDS[task.kind].grid], options)
    several = Several(processes or Processes(), folder, overwrite=overwrite)
    cache, results = GridCache(), dict(enumerate(known))
    for number in several.order(tasks):
        task, run, before = tasks[number], runs[number], known[number]
        if before is not None:
            logger.info("%s: %.4f, evaluated before", in_context(f"{before.task} {before.split}"), before.main_score)
            continue
        if not several.takes(task, number):
            continue
        try:
            shown = task.name if len(tasks) == 1 else f"{task.name} ({number + 1} of {len(tasks)})"
            with within(shown), fixed(encoder):
                if isinstance(task, MtebTask):
                    kept = folder / "mteb" if folder else None
                    result = evaluate_mteb(encoder, task, cache=kept, options=options, overwrite=overwrite)
                else:
                    result = _result_of(encoder, task, options, cache, several.share(task, number, run))
        except FinishedByOthers:
            continue
        name = in_context(f"{result.task} {result.split}")
        logger.info("%s: %.4f in %.1f s", name, result.main_score, result.seconds)
        if folder:
            write_result(result, folder, run)
        results[number] = result
    several.meet(runs)
    return [results[number] or several.result(run) for number, run in enumerate(runs)]


def _checked(tasks: list[Task | MtebTask], encoder: TextEncoder) -> list[Task | MtebTask]:
    """Return the tasks; raise if two have the same name, or one has unknown settings or its own demonstrations."""
    names = [(task.name, task.shown_split if isinstance(task, Task) else task.split) for task in tasks]
    for name, split in names:
        if names.count((name, split)) > 1:
            raise ValueError(f"two tasks are called {name} ({split}); rename a folder, or evaluate it alone")
    for task in tasks:
        if isinstance(task, Task):
            check_settings(task)
            _check_demonstrations(task, encoder)
        else:
            load_task(task)
    return tasks


def _result_of(
    encoder: TextEncoder, task: Task, options: Mapping[str, Any], cache: GridCache, share: CorpusShare | None
) -> Result:
    start = time.perf_counter()
    scores, counts = evaluate_task(encoder, task, options, cache, share)
    main_score, examples = scores.pop("main_score"), scores.pop("examples", {})
    seconds = round(time.perf_counter() - start, 3)
    return Result(task.name, task.shown_split, task.kind, main_score, scores, seconds, counts, examples)


def _run_of(
    task: Task | MtebTask,
    sidecar: Mapping[str, Any],
    generators: Mapping[str, Mapping[str, Any]],
    encoder: TextEncoder,
) -> dict[str, Any]:
    """Return what determines a task's score: the encoder, the task, its settings and the hashes of its data."""
    if isinstance(task, MtebTask):
        found = load_task(task)
        settings: dict[str, Any] = {"mteb": task.mteb, "subset": task.subset, "instruction": task.instruction}
        split, kind = "+".join(found.eval_splits), kind_of(found)
        revision, files = found.metadata.revision, {}
    else:
        settings, split, kind = dict(task.settings), task.shown_split, task.kind
        if task.part is not None:
            settings["part"] = asdict(task.part)
        if settings.get("generator") in generators:  # a machine-independent description instead of a path
            settings["generator"] = generators[settings["generator"]]
        if settings.get("context") is not None:
            from embrew.storage.parts import digest  # imports torch, which tables do not need

            name = settings["context"]
            settings["context"] = {"name": name, "sha256": digest(_contexts(encoder)[name])}
        revision, files = content_hash(task.files), {file.name: content_hash([file]) for file in task.files}
    about = {"task": task.name, "split": split, "kind": kind, "dataset_revision": revision, "data": files}
    return {**sidecar, **about, "settings": {**sidecar["settings"], **settings}}


def _find(path: str | Path, split: str | None, kind: str | None, sts_protocol: Protocol | None) -> Task:
    task = find_task(path, split=split, kind=kind)
    if sts_protocol is None or not _has_setting(task, "protocol"):
        return task
    return find_task(path, split=split, kind=kind, protocol=sts_protocol)


def _contexts(encoder: TextEncoder) -> Mapping[str, Any]:
    return getattr(encoder, "contexts", {})


def _in_context(task: Task | MtebTask, encoder: TextEncoder, context: str | None) -> Task | MtebTask:
    """Return the task with a context in its settings.

    Raises:
        ValueError: the encoder lacks it, the task is one of MTEB, or also has an instruction.
    """
    if isinstance(task, MtebTask):
        if context is not None:
            raise ValueError(f"task {task.name}: contexts apply to data folders only; give the folder of its data")
        return task
    if context is not None:
        task = replace(task, settings={**task.settings, "context": context})
    wanted = task.settings.get("context")
    instructed(encoder, task.settings)  # raises if both an instruction and a context are set
    if wanted is not None and wanted not in _contexts(encoder):
        names = ", ".join(_contexts(encoder)) or "none"
        raise ValueError(f"task {task.name}: context={wanted!r}; this encoder has {names} (embrew context add)")
    return task


def _check_demonstrations(task: Task, encoder: TextEncoder) -> None:
    """Raise if demonstrations of a task's context are rows of the task."""
    name = task.settings.get("context")
    if name is not None and name != TRIED:
        prepared = _contexts(encoder)[name]
        check_apart([pair.query for pair in prepared.context.demonstrations], [task])


def _has_setting(task: Task | MtebTask, name: str) -> bool:
    """Return whether tasks of its kind have this setting."""
    return isinstance(task, Task) and name in KINDS[task.kind].settings


def _cells(task: Task | MtebTask, generator: str | None) -> list[Task] | list[MtebTask]:
    if isinstance(task, MtebTask):
        return [task]
    if generator is not None and _has_setting(task, "generator"):
        task = replace(task, settings={**task.settings, "generator": generator})
    return cells(task)


def _generators(tasks: Sequence[Task | MtebTask]) -> dict[str, dict[str, Any]]:
    """Return descriptions of the tasks' generators by name; raise if one does not exist."""
    names = dict.fromkeys(task.settings.get("generator") for task in tasks if isinstance(task, Task))
    return {name: find_generator(name).as_dict() for name in names if name is not None}
