"""The texts behind the examples of a result: queries and documents by id, and both sides of pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embrew.data.beir import RetrievalData
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.reranking import candidate_names
from embrew.evaluation.rows import task_retrieval, task_rows
from embrew.evaluation.task import GridCache, Task


@dataclass(frozen=True)
class RankedTexts:
    """Texts of queries and documents, and what is relevant.

    Attributes:
        query: Return the text of a query.
        document: Return the text of a document, for a query.
        relevant: Return the ids of a query's relevant documents, those of the highest grade first.
    """

    query: Callable[[str], str | None]
    document: Callable[[str, str], str | None]
    relevant: Callable[[str], Sequence[str]]


NO_TEXTS = RankedTexts(query=lambda _: None, document=lambda _, __: None, relevant=lambda _: ())


def retrieval_of(task: Task, cache: GridCache) -> RetrievalData:
    """Return the data of a retrieval task; `cache` keeps them, by folder and split."""
    return cache.get(f"{task.split} of {task.path}", task.part, lambda: task_retrieval(task))


def ranked_texts(task: Task, cache: GridCache) -> RankedTexts:
    """Return the texts of a task with queries; `cache` keeps the data of retrieval."""
    if task.kind == "reranking":
        return _candidates(_rows(task))
    data = retrieval_of(task, cache)
    documents = {one.id: one.content for one in data.corpus}

    def relevant(query: str) -> Sequence[str]:
        grades = {name: grade for name, grade in data.qrels.get(query, {}).items() if grade > 0 and name in documents}
        return sorted(grades, key=lambda name: -grades[name])

    # Retrieval-augmented answers are right if the document holds an answer: judgements do not count.
    found = relevant if task.kind == "retrieval" else NO_TEXTS.relevant
    return RankedTexts(data.queries.get, lambda _, name: documents.get(name), found)


def pair_texts(task: Task) -> list[tuple[str, str]]:
    """Return both sides of each pair, in the order of the rows."""
    rows = _rows(task)
    return list(zip(rows["sentence1"], rows["sentence2"], strict=True))


def _candidates(rows: Any) -> RankedTexts:
    queries, positives, negatives = (list(rows[name]) for name in ("query", "positive", "negative"))

    def named(query: str) -> Mapping[str, str]:
        row = int(query) - 1
        return {name: text for text, name in candidate_names(positives[row], negatives[row]).items()}

    return RankedTexts(
        query=lambda query: str(queries[int(query) - 1]),
        document=lambda query, name: named(query).get(name),
        relevant=lambda query: [name for name in named(query) if name.startswith("positive ")],
    )


def _rows(task: Task) -> Any:
    return task_rows(task, KINDS[task.kind], task.settings.get("columns"))
