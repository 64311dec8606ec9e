"""Score encoders on one task, with its instruction or context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.rag import depth_option
from embrew.evaluation.mteb_tasks import MtebTask
from embrew.evaluation.processes import CorpusChunks
from embrew.evaluation.rows import read_rows
from embrew.evaluation.task import Evaluate, Evaluated, GridCache, Task, instructed
from embrew.text_encoder import TextEncoder


def prepare(task: Task, cache: GridCache | None = None, chunks: CorpusChunks | None = None) -> Evaluate:
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

    def evaluate(encoder: TextEncoder, options: Mapping[str, Any]) -> Evaluated:
        scores = kind.score(instructed(encoder, task.settings), data, *shared, **scoring, **options)
        return scores, scores.pop("counts")

    return evaluate


def check_grid(encoder: TextEncoder, tasks: Sequence[Task | MtebTask], options: Mapping[str, Any]) -> None:
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
                quiet = {**options, **depth_option(encoder, depth), "show_progress_bar": False}
                widths[depth] = np.asarray(encoder.encode_query(["word"], **quiet)).shape[1]
            if size is not None and size > widths[depth]:
                raise ValueError(
                    f"dims={size}, but the encoder's vectors have {widths[depth]} dimensions; choose up to that"
                )
        except ValueError as error:
            raise ValueError(f"task {task.name}: {error}") from error
