"""The pooling of a bare language model, chosen among the untrained baselines on dev splits."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from embrew import evaluation
from embrew.data.reading import DEV_SPLITS
from embrew.evaluation.find import find_task
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.processes import Processes
from embrew.evaluation.results import mean_score, size_of
from embrew.evaluation.rows import split_names
from embrew.evaluation.runs import prepare
from embrew.evaluation.task import DevPart, MtebTask, Task
from embrew.files.checksums import sealed
from embrew.files.writing import write_json
from embrew.opening import POOLINGS, is_bare, no_pooling, open_bare
from embrew.progress import within
from embrew.report.comparison import CHOICE

logger = logging.getLogger(__name__)
ROWS, QUERIES = 500, 200  # maximum numbers of rows, and of queries of a corpus, of a dev split


class PoolingChoice(NamedTuple):
    """The best pooling of `POOLINGS`.

    Attributes:
        pooling: Name of the pooling.
        scores: Mean score on the dev splits (0 to 1) by pooling.
        on: Names and sizes of the dev splits.
    """

    pooling: str
    scores: dict[str, float]
    on: list[str]

    def __str__(self) -> str:
        """Return the choice in words."""
        scores = ", ".join(f"{name} {100 * score:.1f}" for name, score in self.scores.items())
        return f"no pooling of its own; {self.pooling} is the best of {scores} on {', '.join(self.on)}"


def choose_pooling(
    name: str,
    tasks: Sequence[Task | MtebTask],
    folder: Path | None = None,
    *,
    dtype: str = "auto",
    batch_tokens: int | None = None,
    processes: Processes | None = None,
    overwrite: bool = False,
) -> PoolingChoice | None:
    """Return the pooling with the best mean score on the dev splits of the tasks' folders; None if it is no bare model.

    Of a dev split, at most 500 rows are read; of a corpus, 200 queries and the documents that are judged for them.

    Args:
        name: Name of a model, as `open_model` takes it.
        tasks: What the model is to be evaluated on.
        folder: Keeps the dev scores, so that the same call resumes.
        dtype: Data type of the model.
        batch_tokens: Padded tokens per batch.
        processes: The processes of a launch, which share the tasks.
        overwrite: Replace the dev scores in `folder`.

    Raises:
        FileExistsError: `folder` holds the dev scores of another model, and `overwrite` is off.
        FileNotFoundError: no such model.
        ValueError: no task has a dev split.
    """
    if not is_bare(name):
        return None
    on_dev = dev_tasks(tasks)
    if not on_dev:
        without = ", ".join(task.name for task in tasks)
        raise no_pooling(name, f", and {without} has no dev split to choose one on")
    logger.info("%s has no pooling of its own: %s are compared on dev splits", name, ", ".join(POOLINGS))
    scores: dict[str, float] = {}
    on: list[str] = []
    for pooling in POOLINGS:
        encoder, output = open_bare(name, pooling, dtype=dtype), folder and folder / CHOICE.parent / pooling
        with within(pooling):
            results = evaluation.evaluate(
                encoder,
                on_dev,
                output_dir=output,
                batch_tokens=batch_tokens,
                processes=processes,
                overwrite=overwrite,
                show_progress_bar=True,
            )
        scores[pooling] = mean_score(results)
        logger.info("%s pooling: %.4f on the dev splits", pooling, scores[pooling])
        on = [f"{task.name} {task.split} ({size_of(r.counts)})" for task, r in zip(on_dev, results, strict=True)]
        del encoder
        gc.collect()
    choice = PoolingChoice(max(scores, key=lambda pooling: scores[pooling]), scores, on)
    logger.info("%s: %s", name, choice)
    if folder is not None and (processes is None or processes.rank == 0):
        write_json(folder / CHOICE, sealed(choice._asdict()))
    return choice


def dev_tasks(tasks: Sequence[Task | MtebTask]) -> list[Task]:
    """Return tasks on the dev splits of the folders of other tasks, with the same settings."""
    dev: dict[tuple[str, str], Task] = {}
    for task in tasks:
        if not isinstance(task, Task) or not task.path.is_dir():
            continue
        split = next((name for name in DEV_SPLITS if name in split_names(task.path)), None)
        kind = "retrieval" if KINDS[task.kind].corpus else task.kind
        if split is None or (str(task.path), kind) in dev:
            continue
        settings = dict(task.settings) if kind == task.kind else {}
        settings.pop("context", None)
        if kind == "retrieval":
            settings |= {"documents": "judged", "distractors": 0}
        task_on_dev = find_task(task.path, split=split, kind=kind, name=task.name, **settings)
        dev[str(task.path), kind] = task_on_dev if KINDS[kind].train else _smaller(task_on_dev)
    return list(dev.values())


def _smaller(task: Task) -> Task:
    """Return a task on some of its rows, or the task itself if it has no more than these."""
    part = replace(task, part=DevPart(QUERIES if KINDS[task.kind].corpus else ROWS))
    try:
        prepare(part)
    except ValueError:
        return task
    return part
