"""Score encoders on one task."""

from collections.abc import Mapping
from typing import Any

from embrew.evaluation.corpus_share import CorpusShare
from embrew.evaluation.grid_cache import GridCache
from embrew.evaluation.instructed import instructed
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.task import COMMON, Evaluate, Evaluated, Task
from embrew.text_encoder.interface import TextEncoder


def evaluate_task(
    encoder: TextEncoder,
    task: Task,
    options: Mapping[str, Any],
    cache: GridCache | None = None,
    share: CorpusShare | None = None,
) -> Evaluated:
    """Return scores and counts of an encoder on a task; `options` go to its encode methods.

    Tasks of one grid share data, generator and vectors through `cache`, processes a corpus through `share`.

    Raises:
        FinishedByOthers: another process finishes the task.
    """
    return prepare(task, cache, share)(encoder, options)


def prepare(task: Task, cache: GridCache | None = None, share: CorpusShare | None = None) -> Evaluate:
    """Read a task's data once, to evaluate several encoders on it.

    The settings `instruction` and `context`, which every kind has, are applied to the encoder.
    """
    kind = KINDS[task.kind]
    settings = {name: value for name, value in task.settings.items() if name not in COMMON}
    shared = (cache or GridCache(),) if kind.grid else (share,) if kind.shared else ()
    evaluate = kind.prepare(task, *shared, **settings)
    return lambda encoder, options: evaluate(instructed(encoder, task.settings), options)


def check_settings(task: Task) -> None:
    """Raise if a setting is not one of the task's kind."""
    allowed = KINDS[task.kind].settings
    unknown = sorted(set(task.settings) - set(allowed))
    if unknown:
        raise ValueError(
            f"task {task.name}: {', '.join(unknown)} is not a setting of {task.kind}; choose from {', '.join(allowed)}"
        )
