"""Tasks whose settings list several layers or dimensions: one task per combination."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.rag import depth_option
from embrew.evaluation.task import Task
from embrew.text_encoder.interface import TextEncoder


def cells(task: Task) -> list[Task]:
    """Return one task per combination of the listed numbers of its kind's grid, named `NAME-l6-d128`.

    Raises:
        ValueError: a value that is not a number, is below 1, or is listed twice.
    """
    made = [task]
    for name in KINDS[task.kind].grid:
        numbers = _numbers(task, name)
        if isinstance(task.settings.get(name), list | tuple):
            made = [
                replace(one, name=f"{one.name}-{name[0]}{number}", settings={**one.settings, name: number})
                for one in made
                for number in numbers
            ]
    return made


def check_grid(encoder: TextEncoder, tasks: Sequence[Task], options: Mapping[str, Any]) -> None:
    """Encode one word at each depth of the tasks, to verify that the encoder has their layers and dimensions.

    Raises:
        ValueError: it lacks a depth or a size.
    """
    widths: dict[int | None, int] = {}
    for task in tasks:
        depth, size = (_numbers(task, name)[0] for name in ("layers", "dims"))
        if depth not in widths:
            try:
                quiet = {**options, **depth_option(encoder, depth), "show_progress_bar": False}
                widths[depth] = np.asarray(encoder.encode_query(["word"], **quiet)).shape[1]
            except ValueError as error:
                raise ValueError(f"task {task.name}: {error}") from error
        if size is not None and size > widths[depth]:
            raise ValueError(
                f"task {task.name}: dims={size}, but the encoder's vectors have {widths[depth]} dimensions; choose up "
                "to that"
            )


def _numbers(task: Task, name: str) -> list[int | None]:
    given = task.settings.get(name)
    listed = given if isinstance(given, list | tuple) else [given]
    wrong = [number for number in listed if type(number) is not int or number < 1]
    if given is None:
        return [None]
    if wrong or not listed or len(set(listed)) < len(listed):
        raise ValueError(f"task {task.name}: {name}={given!r}; give numbers above 0, each once, e.g. [64, 128]")
    return list(listed)
