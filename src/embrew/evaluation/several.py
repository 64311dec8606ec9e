"""Tasks shared out over processes: whole ones, or the chunks of a corpus; results meet in the output folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from embrew.evaluation.corpus_share import CorpusShare
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.retrieval import CHUNK
from embrew.evaluation.mteb_tasks import MtebTask
from embrew.evaluation.processes import Processes
from embrew.evaluation.report import Result, finished
from embrew.evaluation.task import Task
from embrew.files.checksums import digest_of

PARTS = ".parts"  # folder in the output folder


class Several:
    """Which tasks this process evaluates.

    Args:
        processes: who shares the tasks.
        folder: the output folder.
        overwrite: corpora that an earlier run has begun are ranked from the start.

    Raises:
        ValueError: several processes without an output folder.
    """

    def __init__(self, processes: Processes, folder: Path | None, *, overwrite: bool) -> None:
        if processes.count > 1 and folder is None:
            raise ValueError(
                f"{processes.count} processes share tasks through a folder; give --output DIR (output_dir), or start "
                "one process"
            )
        processes.begin()
        self._processes, self._folder, self._overwrite = processes, folder, overwrite
        self._mine: dict[str, bool] = {}

    def order(self, tasks: Sequence[Task | MtebTask]) -> list[int]:
        """Return the numbers of the tasks, in the order in which they are begun: several processes, largest first."""
        numbers = range(len(tasks))
        return list(numbers) if self._processes.count == 1 else sorted(numbers, key=lambda n: -_size(tasks[n]))

    def takes(self, task: Task | MtebTask, number: int) -> bool:
        """Return whether this process begins a task; the cells of a grid, which share vectors, are one."""
        if _is_shared(task):
            return True
        is_cell = isinstance(task, Task) and KINDS[task.kind].grid
        whole = f"grid {task.path} {task.split}" if is_cell and isinstance(task, Task) else f"task {number}"
        if whole not in self._mine:
            self._mine[whole] = self._processes.add(whole) == 0
        return self._mine[whole]

    def share(self, task: Task, number: int, run: Mapping[str, Any]) -> CorpusShare | None:
        """Return what this process does of a task's corpus; None if the task is not shared."""
        if not _is_shared(task):
            return None
        return CorpusShare(self._processes, f"corpus {number}", self._parts(run), afresh=self._overwrite)

    def meet(self, runs: Sequence[Mapping[str, Any]]) -> None:
        """Wait until all tasks are finished; remove what was kept of their corpora."""
        self._processes.meet()
        if self._folder is None or self._processes.rank != 0:
            return
        for run in runs:
            CorpusShare(folder=self._parts(run)).remove()
        with suppress(OSError):
            (self._folder / PARTS).rmdir()

    def result(self, run: Mapping[str, Any]) -> Result:
        """Return a result that another process has written."""
        assert self._folder is not None
        found = finished(self._folder, run)
        assert found is not None, run["task"]
        return found

    def _parts(self, run: Mapping[str, Any]) -> Path | None:
        return self._folder / PARTS / digest_of({**run, "chunk": CHUNK})[:16] if self._folder else None


def _is_shared(task: Task | MtebTask) -> bool:
    return isinstance(task, Task) and KINDS[task.kind].shared


def _size(task: Task | MtebTask) -> float:
    """Return the bytes of a task's data; infinity where mteb reads them."""
    return sum(file.stat().st_size for file in task.files) if isinstance(task, Task) else math.inf
