"""A seeded sample of the tasks' texts and their unit vectors: spectrum, uniformity and principal components."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.data.reading import is_beir
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.retrieval import select_documents
from embrew.evaluation.rows import task_retrieval, task_rows
from embrew.evaluation.task import instructed
from embrew.ranking import sample_in_order
from embrew.text_encoder import encode_options, unit_vectors

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder import TextEncoder

TEXTS = 3000  # maximum number of texts that are encoded per model
QUERIES = 0.2  # share of a task's texts that are queries
POINTS = 200  # points of a spectrum
SEED = 42

Key = tuple[str, str]  # name and split of a task


@dataclass(frozen=True)
class TaskSample:
    """Texts of one task, each once.

    Attributes:
        role: How the texts are encoded: `text` or `document`.
        ids: Ids of documents, or numbers of rows from 1.
        texts: Documents, or texts of rows.
        labels: Their classes; empty if the task has none.
        queries: Queries of the documents.
    """

    role: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()


def sample_texts(data: Mapping[Key, Task], *, texts: int = TEXTS, seed: int = SEED) -> dict[Key, TaskSample]:
    """Return a sample of each task's texts, up to `texts` in all, with the same share for each task."""
    return {key: _sample_task(task, texts // len(data), seed) for key, task in data.items()}


def measure_vectors(encoder: TextEncoder, data: Mapping[Key, Task]) -> dict[str, Any]:
    """Return figures of an encoder's unit vectors, and the maps' coordinates; empty if there are no texts.

    Returns:
        `texts`, `spectrum`, `uniformity`, `map` by task, and `missing`: why a figure is not there, by its name.
    """
    from embrew.analysis.uniformity import uniformity

    vectors, maps = [], {}
    for key, sample in sample_texts(data).items():
        reader = instructed(encoder, data[key].settings)
        encode = reader.encode_document if sample.role == "document" else reader.encode
        for texts, method in ((sample.texts, encode), (sample.queries, reader.encode_query)):
            if texts:
                encoded = method(list(texts), **encode_options(encoder))
                vectors.append(unit_vectors(encoded, what=f"{key[0]}'s texts", texts=texts))
                if texts is sample.texts:
                    maps[" ".join(key)] = principal_components(vectors[-1])
    if not vectors:
        return {}
    together = np.concatenate(vectors)
    figures: dict[str, Any] = {"texts": len(together), "missing": {}, "map": maps}
    for name, figure in (("spectrum", _spectrum), ("uniformity", uniformity)):
        try:
            figures[name] = figure(together)
        except ValueError as error:
            figures[name], figures["missing"][name] = None, str(error)
    return figures


def principal_components(vectors: np.ndarray) -> dict[str, Any]:
    """Return the coordinates on two principal components, float32 `(texts, 2)`, and their share of the variance."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2), np.float32)
    both = min(2, len(values))
    points[:, :both] = left[:, :both] * values[:both]
    total = float((values**2).sum())
    return {"points": points, "variance": float((values[:2] ** 2).sum()) / total if total else 0.0}


def _spectrum(vectors: np.ndarray) -> dict[str, Any]:
    """Return effective dimensions, and singular values as shares of their sum at up to `POINTS` ranks from 1."""
    from embrew.analysis.spectrum import spectrum_of

    spectrum = spectrum_of(vectors)
    values = spectrum.singular_values
    ranks = np.unique(np.geomspace(1, len(values), POINTS).round().astype(int))
    return {**spectrum.summary(), "ranks": ranks.tolist(), "shares": (values[ranks - 1] / values.sum()).tolist()}


def _sample_task(task: Task, maximum: int, seed: int) -> TaskSample:
    kind = KINDS[task.kind]
    if is_beir(task.path):
        return _sample_corpus(task, maximum, seed)
    rows = task_rows(task, kind, task.settings.get("columns"))
    in_pairs = kind.rows in ("scored", "labelled_pairs")
    chosen = sample_in_order(range(len(rows)), maximum // 2 if in_pairs else maximum, seed=seed)
    numbered = list(zip(chosen, rows.select(chosen), strict=True))
    if in_pairs:
        return _distinct_texts((i, str(row[name]), "") for i, row in numbered for name in ("sentence1", "sentence2"))
    if kind.rows != "candidates":
        return _distinct_texts((i, row[kind.about[0]], str(row.get("label", ""))) for i, row in numbered)
    documents: list[tuple[int, str, str]] = []
    queries: list[str] = []
    for i, row in numbered:  # queries with all their candidates, as long as there is room
        candidates = [(i, text, "") for text in (*row["positive"], *row["negative"])]
        if len(documents) + len(queries) + len(candidates) + 1 <= maximum:
            documents += candidates
            queries.append(row["query"])
    return _distinct_texts(documents, role="document", queries=queries)


def _sample_corpus(task: Task, maximum: int, seed: int) -> TaskSample:
    """Sample queries with their best relevant document, and further documents."""
    limits = {name: task.settings.get(name, default) for name, default in (("documents", "all"), ("distractors", 0))}
    data = select_documents(task_retrieval(task), **limits, seed=task.settings.get("seed", 42))
    texts = {document.id: document.content for document in data.corpus}
    best: dict[str, str] = {}
    for query, grades in data.qrels.items():
        relevant = [(-grade, document) for document, grade in grades.items() if grade > 0 and document in texts]
        if relevant:
            best[query] = min(relevant)[1]
    queries = sample_in_order(list(best), int(maximum * QUERIES), seed=seed)
    needed = list(dict.fromkeys(best[query] for query in queries))
    others = sorted(set(texts) - set(needed))
    ids = sorted({*needed, *sample_in_order(others, max(maximum - len(queries) - len(needed), 0), seed=seed)})
    documents = {name: texts[name] for name in ids if texts[name].strip()}
    texts_of_queries = dict.fromkeys(data.queries[query] for query in queries if best[query] in documents)
    return TaskSample("document", tuple(documents), tuple(documents.values()), queries=tuple(texts_of_queries))


def _distinct_texts(
    rows: Iterable[tuple[int, str, str]], *, role: str = "text", queries: Sequence[str] = ()
) -> TaskSample:
    """Return a sample of row numbers, texts and labels, each text once."""
    first: dict[str, tuple[int, str]] = {}
    for row, text, label in rows:
        first.setdefault(text, (row, label))
    labels = tuple(label for _, label in first.values())
    ids = tuple(str(row + 1) for row, _ in first.values())
    return TaskSample(role, ids, tuple(first), labels if any(labels) else (), tuple(dict.fromkeys(queries)))
