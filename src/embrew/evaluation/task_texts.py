"""The texts of a task, for overlap checks and to exclude them from demonstrations and training rows."""

from collections.abc import Collection, Iterator, Sequence

from embrew.data.beir import read_beir
from embrew.data.fingerprints import normalised
from embrew.data.reading import is_beir
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.rows import task_retrieval, task_rows, texts_of
from embrew.evaluation.task import Task

TRIAL_CONTEXT = "being-chosen"  # temporary context name while a number of demonstrations is chosen; already checked


def task_texts(task: Task) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield names and lazily read texts; queries and documents are separate entries."""
    kind = KINDS[task.kind]
    if is_beir(task.path):
        yield f"{task.name} queries", iter(task_retrieval(task).queries.values())
        yield f"{task.name} documents", _corpus_texts(task)
    elif kind.documents:
        yield f"{task.name} queries", _texts(task, (*kind.about, *kind.other))
        yield f"{task.name} documents", _texts(task, kind.documents)
    else:
        yield task.name, _texts(task, (*kind.about, *kind.other))


def check_demonstrations(demonstrations: Sequence[str], tasks: Sequence[Task]) -> None:
    """Raise if the query of a demonstration is a text of one of the tasks.

    Raises:
        ValueError: the message gives their number, the task and one of them.
    """
    originals = {normalised(text): text for text in demonstrations}
    for task in tasks:
        if not originals:
            continue
        both = sorted(originals.keys() & {normalised(text) for text in next(task_texts(task))[1]})
        if both:
            raise ValueError(
                f"{len(both)} of {len(originals)} demonstrations are rows of {task.name} {task.split_label}, for "
                f"example {originals[both[0]]!r}; take demonstrations from other rows"
            )


def reserved_texts(task: Task) -> list[str]:
    """Return texts of dev rows that are split off training rows, which may not be trained on; of other tasks, none."""
    if task.part is None:
        return []
    if is_beir(task.path):
        return list(task_retrieval(task).queries.values())
    return list(_texts(task, KINDS[task.kind].about))


def relevant_texts(task: Task) -> Iterator[str]:
    """Yield the texts of the documents of a BEIR folder that answer a query of the task."""
    grades = task_retrieval(task).qrels.values()
    yield from _corpus_texts(
        task, {name for grades_of_query in grades for name, grade in grades_of_query.items() if grade > 0}
    )


def _corpus_texts(task: Task, only: Collection[str] | None = None) -> Iterator[str]:
    for document in read_beir(task.path, task.split).corpus:
        if only is None or document.id in only:
            yield document.content
            if document.title:
                yield document.text


def _texts(task: Task, columns: tuple[str, ...]) -> Iterator[str]:
    yield from texts_of(task_rows(task, KINDS[task.kind]), columns)
