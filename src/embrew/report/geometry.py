"""Geometry: how evenly a model's vectors of a sample of the tasks' texts spread, and how many dimensions they use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embrew.data.reading import is_beir
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.retrieval import select_documents
from embrew.evaluation.rows import task_retrieval, task_rows
from embrew.evaluation.task import instructed
from embrew.ranking import sample_in_order
from embrew.report.section import Components, Section, Subject, Values, VectorFigures
from embrew.text_encoder import encode_options, unit_vectors

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder import TextEncoder

TEXTS = 3000  # maximum number of texts that are encoded per model
QUERIES = 0.2  # share of a task's texts that are queries
POINTS = 200  # points of a spectrum
SEED = 42

TaskKey = tuple[str, str]  # name and split of a task


def section(subject: Subject) -> Section | None:
    """Return the section; None if no encoder is known."""
    measured = {name: subject.vectors[name] for name in subject.names if subject.vectors.get(name)}
    if not measured:
        return None
    rows = {name: quantities(figures) for name, figures in measured.items()}
    document = {
        "models": {
            name: {key: value for key, value in figures.items() if key != "map"} for name, figures in measured.items()
        },
        "not_measured": [name for name in subject.names if name not in measured],
    }
    values = {
        "names": subject.names,
        "rows": {
            quantity: [_cell(rows.get(name, {}).get(quantity)) for name in subject.names]
            for quantity in next(iter(rows.values()))
        },
        "missing": {name: figures["missing"] for name, figures in measured.items() if figures["missing"]},
        "texts": max(figures["texts"] for figures in measured.values()),
        "spectrum": [  # singular values of the covariance as shares, largest first
            {"model": name, "rank": rank, "share": float(f"{share:.4g}")}
            for name, figures in measured.items()
            if figures["spectrum"]
            for rank, share in zip(figures["spectrum"]["ranks"], figures["spectrum"]["shares"], strict=True)
            if share > 1e-9
        ],
    }
    return Section("Geometry", document, values)


def quantities(figures: VectorFigures) -> dict[str, float | None]:
    """Return the lines of the table for one model."""
    spectrum = figures["spectrum"] or {}
    energy = spectrum.get("energy_dimensions", {})
    return {
        "dimensions": spectrum.get("dimensions"),
        "dimensions with 90 % of the variance": energy.get("0.9"),
        "dimensions with 99 % of the variance": energy.get("0.99"),
        "participation ratio (dimensions)": spectrum.get("participation_ratio"),
        "RankMe (dimensions)": spectrum.get("rankme"),
        "uniformity": figures["uniformity"],
    }


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


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


def sample_texts(data: Mapping[TaskKey, Task], *, texts: int = TEXTS, seed: int = SEED) -> dict[TaskKey, TaskSample]:
    """Return a sample of each task's texts, up to `texts` in all, with the same share for each task."""
    return {key: _sample_task(task, texts // len(data), seed) for key, task in data.items()}


def measure_vectors(encoder: TextEncoder, data: Mapping[TaskKey, Task]) -> VectorFigures:
    """Return figures of an encoder's unit vectors, and the maps' coordinates; empty if there are no texts."""
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
    figures: VectorFigures = {"texts": len(together), "missing": {}, "map": maps, "spectrum": None, "uniformity": None}
    try:
        figures["spectrum"] = _spectrum(together)
    except ValueError as error:
        figures["missing"]["spectrum"] = str(error)
    try:
        figures["uniformity"] = uniformity(together)
    except ValueError as error:
        figures["missing"]["uniformity"] = str(error)
    return figures


def principal_components(vectors: np.ndarray) -> Components:
    """Return the coordinates on two principal components, float32 `(texts, 2)`, and their share of the variance."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2), np.float32)
    both = min(2, len(values))
    points[:, :both] = left[:, :both] * values[:both]
    total = float((values**2).sum())
    return {"points": points, "variance": float((values[:2] ** 2).sum()) / total if total else 0.0}


def _spectrum(vectors: np.ndarray) -> Values:
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
