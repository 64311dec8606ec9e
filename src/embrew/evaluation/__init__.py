"""Judge an encoder on data folders and suites: seven kinds of task, without network or mteb."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from embrew.evaluation.kinds import check_settings, judge
from embrew.evaluation.protocol import TextEncoder, encode_options
from embrew.evaluation.report import Result, averages, describe_run, finished, run_of, table, write_result
from embrew.evaluation.sts import Protocol
from embrew.evaluation.suites import Suite, list_suites, read_suite
from embrew.evaluation.tasks import Kind, Task, find_task

__all__ = [
    "Result",
    "Suite",
    "Task",
    "TextEncoder",
    "averages",
    "evaluate",
    "find_task",
    "list_suites",
    "read_suite",
    "table",
]

logger = logging.getLogger(__name__)


def evaluate(
    encoder: TextEncoder,
    data: Sequence[str | Path | Task] | Suite,
    *,
    output_dir: str | Path | None = None,
    split: str | None = None,
    kind: Kind | None = None,
    sts_protocol: Protocol | None = None,
    batch_tokens: int | None = None,
    overwrite: bool = False,
    show_progress_bar: bool = False,
) -> list[Result]:
    """Judge an `Encoder` or a `SentenceTransformer` on data folders or a suite, with the same code.

    Sentence pairs and texts are encoded by `encode` (no prompt but a default one), queries by `encode_query`, documents
    by `encode_document`. All folders are looked at before the first text is encoded.

    Args:
        data: Folders (`$NAME` is replaced from the environment), tasks, or a suite.
        output_dir: Where to write a JSON file a task, and one that says what was judged. A task whose file is there
            already, for the same model, data and settings, is not judged again; another's file is not replaced.
        split: For folders; default: `test`, else `dev`.
        kind: For folders; default: by the columns.
        sts_protocol: For folders of scored pairs; default: `all` pairs together.
        batch_tokens: Tokens a batch, for encoders that know it.
        overwrite: Judge everything, and replace what is in `output_dir`.

    Raises:
        FileExistsError: `output_dir` holds results of another model, other data or other settings.

    Examples:
        >>> [result.main_score for result in evaluate(encoder, ["$EMBREW_DATA/STSB"])]  # doctest: +SKIP
        [0.8203]
    """
    if isinstance(data, str | Path):
        raise TypeError(f"data={data!r}; give a list of folders")
    tasks = [task if isinstance(task, Task) else _find(task, split, kind, sts_protocol) for task in _tasks(data)]
    names = [(task.name, task.split) for task in tasks]
    for task in tasks:
        check_settings(task)
        if names.count((task.name, task.split)) > 1:
            raise ValueError(f"two tasks are called {task.name} ({task.split}); rename a folder, or give it alone")
    options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    folder = Path(output_dir) if output_dir else None
    sidecar = describe_run(encoder, batch_tokens=batch_tokens) if folder else {}
    runs = [run_of(task, sidecar) if folder else {} for task in tasks]
    done = [
        finished(task, folder, run) if folder and not overwrite else None for task, run in zip(tasks, runs, strict=True)
    ]
    results = []
    for task, run, known in zip(tasks, runs, done, strict=True):
        if known is not None:
            logger.info("%s %s: %.4f, judged before", task.name, task.split, known.main_score)
            results.append(known)
            continue
        start = time.perf_counter()
        scores, counts = judge(encoder, task, options)
        main_score = scores.pop("main_score")
        seconds = round(time.perf_counter() - start, 3)
        result = Result(task.name, task.split, task.kind, main_score, scores, seconds, counts)
        logger.info("%s %s: %.4f in %.1f s", task.name, task.split, main_score, seconds)
        if folder:
            write_result(result, folder, run)
        results.append(result)
    return results


def _tasks(data: Sequence[str | Path | Task] | Suite) -> Sequence[str | Path | Task]:
    return data.tasks if isinstance(data, Suite) else data


def _find(path: str | Path, split: str | None, kind: Kind | None, sts_protocol: Protocol | None) -> Task:
    task = find_task(path, split=split, kind=kind)
    if sts_protocol is None or task.kind != "sts":
        return task
    return find_task(path, split=split, kind=kind, protocol=sts_protocol)
