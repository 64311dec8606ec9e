"""A seeded sample of the tasks' texts, and their vectors: each text is encoded once for all sections."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from embrew.data.reading import is_beir
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.retrieval import select_documents
from embrew.evaluation.rows import task_retrieval, task_rows
from embrew.evaluation.task import instructed
from embrew.sampling import sample_in_order
from embrew.text_encoder.interface import encode_options
from embrew.text_encoder.vectors import unit_vectors

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder.interface import TextEncoder

TEXTS = 3000  # encoded per model at most
QUERIES = 0.2  # share of a task's texts that are queries
POSITIVE = 4.0  # an STS pair with a higher score, from 0 to 5, is positive (SimCSE)
SEED = 42

Key = tuple[str, str]  # name and split of a task
Row = Mapping[str, Any]


class Text(NamedTuple):
    """A text as a model reads it: plain, as a query, or as a document."""

    role: Literal["text", "query", "document"]
    text: str


@dataclass(frozen=True)
class TaskSample:
    """Texts of one task.

    Attributes:
        kind: Name of the task's kind.
        ids: Ids of documents, or numbers of rows from 1.
        texts: Documents, or texts of rows; each once.
        labels: Their classes; empty if the task has none.
        pairs: Positive pairs: query and relevant document, or two similar texts.
    """

    kind: str
    ids: tuple[str, ...]
    texts: tuple[Text, ...]
    labels: tuple[str, ...] = ()
    pairs: tuple[tuple[Text, Text], ...] = ()

    @property
    def every(self) -> tuple[Text, ...]:
        """`texts` and those of `pairs`, each once."""
        return tuple(dict.fromkeys([*self.texts, *(text for pair in self.pairs for text in pair)]))


@dataclass(frozen=True)
class TaskVectors:
    """Unit vectors of a task's sample, one row per text of `TaskSample.every`."""

    sample: TaskSample
    vectors: np.ndarray
    rows: Mapping[Text, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", {text: row for row, text in enumerate(self.sample.every)})

    def of(self, texts: Iterable[Text]) -> np.ndarray:
        """Return the vectors of some of the texts, `(texts, dimensions)`."""
        return np.asarray(self.vectors[[self.rows[text] for text in texts]])


def sample_texts(data: Mapping[Key, Task], *, texts: int = TEXTS, seed: int = SEED) -> dict[Key, TaskSample]:
    """Return a sample of each task's texts, up to `texts` in all, with the same share for each task."""
    share = texts // max(len(data), 1)
    return {key: _sample(task, share, seed) for key, task in data.items()}


def encode_sample(
    encoder: TextEncoder, data: Mapping[Key, Task], samples: Mapping[Key, TaskSample]
) -> dict[Key, TaskVectors]:
    """Return the unit vectors of each task's sample, with the task's instruction or context."""
    found = {}
    for key, sample in samples.items():
        reader = instructed(encoder, data[key].settings)
        encode = {"text": reader.encode, "query": reader.encode_query, "document": reader.encode_document}
        texts = sample.every
        vectors: np.ndarray | None = None
        for role in dict.fromkeys(text.role for text in texts):
            rows = [row for row, text in enumerate(texts) if text.role == role]
            given = [texts[row].text for row in rows]
            part = unit_vectors(encode[role](given, **encode_options(encoder)), what=f"{key[0]}'s texts", texts=given)
            vectors = np.zeros((len(texts), part.shape[1]), np.float32) if vectors is None else vectors
            vectors[rows] = part
        assert vectors is not None
        found[key] = TaskVectors(sample, vectors)
    return found


def _sample(task: Task, most: int, seed: int) -> TaskSample:
    kind = KINDS[task.kind]
    if kind.rows is None or (kind.corpus and is_beir(task.path)):
        return _of_corpus(task, most, seed)
    rows = task_rows(task, kind, task.settings.get("columns"))
    in_pairs = kind.rows in ("scored", "labelled_pairs")
    chosen = sample_in_order(range(len(rows)), most // 2 if in_pairs else most, seed=seed)
    numbered: list[tuple[int, Row]] = list(zip(chosen, rows.select(chosen), strict=True))
    if in_pairs:
        return _of_sentence_pairs(task.kind, numbered)
    if kind.rows == "candidates":
        return _of_candidates(task.kind, numbered, most)
    found = [(i, row[kind.about[0]], str(row.get("label", ""))) for i, row in numbered]
    return _distinct(task.kind, found)


def _of_corpus(task: Task, most: int, seed: int) -> TaskSample:
    """Sample queries with their best relevant document, and further documents."""
    limits = {name: task.settings.get(name, default) for name, default in (("documents", "all"), ("distractors", 0))}
    data = select_documents(task_retrieval(task), **limits, seed=task.settings.get("seed", 42))
    texts = {document.id: document.content for document in data.corpus}
    best: dict[str, str] = {}
    for query, grades in data.qrels.items():
        there = [(-grade, document) for document, grade in grades.items() if grade > 0 and document in texts]
        if there:
            best[query] = min(there)[1]
    queries = sample_in_order(list(best), int(most * QUERIES), seed=seed)
    needed = list(dict.fromkeys(best[query] for query in queries))
    others = sorted(set(texts) - set(needed))
    room = max(most - len(queries) - len(needed), 0)
    ids = sorted({*needed, *random.Random(seed).sample(others, min(room, len(others)))})
    documents = {name: Text("document", texts[name]) for name in ids if texts[name].strip()}
    pairs = [
        (Text("query", data.queries[query]), documents[best[query]]) for query in queries if best[query] in documents
    ]
    return TaskSample(task.kind, tuple(documents), tuple(documents.values()), pairs=tuple(pairs))


def _of_candidates(kind: str, rows: Sequence[tuple[int, Row]], most: int) -> TaskSample:
    """Return queries with all their candidates, as many as `most` texts hold."""
    found: list[tuple[int, str, str]] = []
    pairs: list[tuple[Text, Text]] = []
    for i, row in rows:
        candidates = [*row["positive"], *row["negative"]]
        if len(found) + len(pairs) + len(candidates) + 1 <= most:
            found += [(i, text, "") for text in candidates]
            pairs.append((Text("query", row["query"]), Text("document", row["positive"][0])))
    return _distinct(kind, found, pairs, role="document")


def _of_sentence_pairs(kind: str, rows: Sequence[tuple[int, Row]]) -> TaskSample:
    found, pairs = [], []
    for i, row in rows:
        sides = [str(row[name]) for name in ("sentence1", "sentence2")]
        found += [(i, text, "") for text in sides]
        score = row.get("score")
        is_positive = score > POSITIVE if isinstance(score, float) else str(row.get("label")) == "1"
        if is_positive and sides[0] != sides[1]:
            pairs.append((Text("text", sides[0]), Text("text", sides[1])))
    return _distinct(kind, found, pairs)


def _distinct(
    kind: str,
    found: Iterable[tuple[int, str, str]],
    pairs: Iterable[tuple[Text, Text]] = (),
    role: Literal["text", "document"] = "text",
) -> TaskSample:
    """Return a sample of row numbers, texts and labels, each text once."""
    kept: dict[Text, tuple[int, str]] = {}
    for row, text, label in found:
        kept.setdefault(Text(role, text), (row, label))
    labels = tuple(label for _, label in kept.values())
    ids = tuple(str(row + 1) for row, _ in kept.values())
    return TaskSample(kind, ids, tuple(kept), labels if any(labels) else (), tuple(pairs))
