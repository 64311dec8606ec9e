"""Evaluate encoders on data folders and suites: nine kinds of task, without network or mteb."""

import logging
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from embrew.evaluation.find import find_task
from embrew.evaluation.kinds import KINDS, retrieval
from embrew.evaluation.mteb_tasks import evaluate_mteb
from embrew.evaluation.processes import CorpusChunks, FinishedByOthers, Processes
from embrew.evaluation.results import (
    Result,
    Sidecar,
    averages,
    check_one_model,
    finished,
    grid_table,
    read_result,
    result_file,
    table,
    write_result,
)
from embrew.evaluation.runs import check_grid, describe_tasks, prepare, tasks_to_run
from embrew.evaluation.suites import Suite, list_suites, read_suite
from embrew.evaluation.task import GridCache, MtebTask, Task
from embrew.files.checksums import digest_of
from embrew.progress import in_context, within
from embrew.text_encoder import EncodeOptions, TextEncoder, encode_options, fixed

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
PARTS = ".parts"  # folder in the output folder, for begun corpora


def evaluate(
    encoder: TextEncoder,
    data: Sequence[str | Path | Task | MtebTask] | Suite,
    *,
    output_dir: str | Path | None = None,
    split: str | None = None,
    kind: str | None = None,
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
    tasks = tasks_to_run(encoder, data, split=split, kind=kind, generator=generator, context=context)
    options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    folder = None if output_dir is None else Path(output_dir)
    runs = [Sidecar() for _ in tasks] if folder is None else describe_tasks(tasks, encoder, batch_tokens=batch_tokens)
    return _evaluate(encoder, tasks, runs, options, folder, overwrite, processes or Processes())


def _evaluate(
    encoder: TextEncoder,
    tasks: Sequence[Task | MtebTask],
    runs: Sequence[Sidecar],
    options: EncodeOptions,
    folder: Path | None,
    overwrite: bool,
    processes: Processes,
) -> list[Result]:
    """Return the results of the tasks, of which this process evaluates its share."""
    if folder is not None:
        check_one_model(folder, runs)
    results = [finished(folder, run) if folder and not overwrite else None for run in runs]
    for result in (result for result in results if result is not None):
        name = in_context(f"{result.task} {result.split}")
        logger.info("%s: %.4f, evaluated before", name, result.main_score)
    waiting = [number for number, result in enumerate(results) if result is None]
    check_grid(encoder, [tasks[number] for number in waiting], options)
    shared = [n for n in waiting if KINDS[getattr(tasks[n], "kind", "sts")].shared]
    corpora = _corpora(processes, folder, {n: runs[n] for n in shared}, overwrite)
    cache = GridCache()
    for unit in _units(tasks, waiting, processes):
        if unit[0] not in corpora and processes.add(f"task {unit[0]}") > 0:
            continue  # another process evaluates it
        for number in unit:
            task = tasks[number]
            label = task.name if len(tasks) == 1 else f"{task.name} ({number + 1} of {len(tasks)})"
            with within(label), fixed(encoder), suppress(FinishedByOthers):
                if isinstance(task, MtebTask):
                    mteb_cache = folder / "mteb" if folder else None
                    result = evaluate_mteb(encoder, task, cache=mteb_cache, options=options, overwrite=overwrite)
                else:
                    start = time.perf_counter()
                    scores = prepare(task, cache, corpora.get(number))(encoder, options)
                    result = Result.of_scores(task, scores, round(time.perf_counter() - start, 3))
                if folder:
                    if not overwrite:
                        finished(folder, runs[number])  # another process may have written one meanwhile
                    write_result(result, folder, runs[number])
                results[number] = result
            if results[number] is not None:
                name = in_context(f"{result.task} {result.split}")
                logger.info("%s: %.4f in %.1f s", name, result.main_score, result.seconds)
    processes.barrier()
    if folder is None:
        return [result for result in results if result is not None]
    if processes.rank == 0:
        _remove_parts(folder, runs)
    paths = [result_file(folder, run["task"], run["split"]) for run in runs]
    return [result or read_result(path) for result, path in zip(results, paths, strict=True)]


def _corpora(
    processes: Processes, folder: Path | None, runs: Mapping[int, Sidecar], overwrite: bool
) -> dict[int, CorpusChunks]:
    """Begin an evaluation; return the corpora that the processes share, by the numbers of their tasks."""
    if processes.count > 1 and folder is None:
        raise ValueError(
            f"{processes.count} processes share tasks through a folder; give --output DIR (output_dir), or start "
            "one process"
        )
    processes.begin()
    if overwrite and folder is not None and processes.rank == 0:
        _remove_parts(folder, runs.values())
    processes.barrier()
    corpora = {
        number: CorpusChunks(processes, f"task {number}", None if folder is None else _parts(folder, run))
        for number, run in runs.items()
    }
    processes.barrier()  # all have read what earlier runs ranked
    return corpora


def _parts(folder: Path, run: Sidecar) -> Path:
    return folder / PARTS / digest_of({**run, "chunk": retrieval.CHUNK})[:16]


def _remove_parts(folder: Path, runs: Iterable[Sidecar]) -> None:
    for run in runs:
        shutil.rmtree(_parts(folder, run), ignore_errors=True)
    with suppress(OSError):  # it holds corpora of other tasks
        (folder / PARTS).rmdir()


def _units(tasks: Sequence[Task | MtebTask], waiting: Sequence[int], processes: Processes) -> list[list[int]]:
    """Return the numbers of tasks that one process evaluates; the cells of a grid, which share vectors, are one unit.

    Several processes begin with the largest data; those of MTEB, whose size is not known, are the first.
    """
    units: dict[int | tuple[Path, str], list[int]] = {}
    for number in waiting:
        task = tasks[number]
        key = (task.path, task.split) if isinstance(task, Task) and KINDS[task.kind].grid else number
        units.setdefault(key, []).append(number)

    def size(unit: list[int]) -> float:
        task = tasks[unit[0]]
        return sum(file.stat().st_size for file in task.files) if isinstance(task, Task) else math.inf

    return list(units.values()) if processes.count == 1 else sorted(units.values(), key=size, reverse=True)
