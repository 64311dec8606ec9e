"""Retrieval-augmented answers by number of layers and dimensions: answer recall, exact match, and times.

ESE: Espresso Sentence Embeddings (arXiv 2402.14776), section 4.3: contexts in faiss' IndexFlatL2 over unit vectors, the
nearest one to each question, a prompt, a generator, exact match (Table 3), encoding and search timed separately
(Figure 6).
"""

import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from embrew.data.beir import Document, read_beir
from embrew.evaluation.answers import can_be_found, contains_answer, exact_match
from embrew.evaluation.generator import Generator
from embrew.evaluation.kinds.retrieval import select_documents
from embrew.evaluation.questions import Question, read_questions
from embrew.evaluation.task import COMMON, Columns, Evaluate, Evaluated, GridCache, Task, TaskKind, inner
from embrew.sampling import sample_in_order
from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import unit_vectors


@dataclass(frozen=True)
class Vectors:
    """Vectors `(texts, dimensions)` of all questions and documents at one depth, and the seconds per side."""

    questions: np.ndarray
    documents: np.ndarray
    question_seconds: float
    document_seconds: float


def prepare(
    task: Task,
    cache: GridCache,
    *,
    dims: int | None = None,
    layers: int | None = None,
    generator: str | None = None,
    max_new_tokens: int = 32,
    batch_size: int = 8,
    questions: int | None = None,
    documents: Literal["all", "judged"] = "all",
    distractors: int = 0,
    seed: int = 42,
    answers: str | None = None,
    columns: Columns = None,
) -> Evaluate:
    """Read questions with answers and a corpus, to evaluate encoders on them."""

    def read() -> tuple[list[Question], list[Document], int]:
        data = read_beir(task.path, task.split)
        file = task.files[-1] if answers is not None else None
        asked = sample_questions(read_questions(task.path, data, answers=file, columns=columns), questions, seed=seed)
        corpus = select_documents(data, documents=documents, distractors=distractors, seed=seed).corpus
        # An empty document's vector may be zero, which is nearer to a question than an unrelated document is.
        filled = sorted((one for one in corpus if one.content.strip()), key=lambda one: one.id)
        return asked, filled, len(corpus) - len(filled)

    # Cells with the same data may differ in these settings only.
    later = {"dims", "layers", "generator", "max_new_tokens", "batch_size", *COMMON}
    source = task.files, task.split, repr({name: value for name, value in task.settings.items() if name not in later})
    asked, corpus, empty = cache.get("data", source, read)
    found = sum(can_be_found(question.answers) for question in asked)
    counts = {"queries": len(asked), "documents": len(corpus), "empty_documents": empty, "queries_with_span": found}

    def evaluate(encoder: TextEncoder, options: Mapping[str, Any]) -> Evaluated:
        model = None
        if generator is not None:  # before texts are encoded, since it may not fit into memory
            opened = generator, max_new_tokens
            model = cache.get("generator", opened, lambda: Generator.open(generator, max_new_tokens=max_new_tokens))
        how = {**options, **depth_option(inner(encoder), layers)}
        key = source, layers, *(task.settings.get(name) for name in COMMON)
        vectors = cache.get("vectors", key, lambda: encode(encoder, asked, corpus, **how))
        shown = bool(options.get("show_progress_bar"))
        scores = evaluate_rag(
            asked, corpus, vectors, dims=dims, generator=model, batch_size=batch_size, show_progress_bar=shown
        )
        return {**scores, "layers": layers}, counts

    return evaluate


def sample_questions(questions: list[Question], count: int | None, *, seed: int) -> list[Question]:
    """Return all questions, or a seeded sample of `count` in their order."""
    if count is not None and not 1 <= count <= len(questions):
        raise ValueError(
            f"questions={count}, but the split has {len(questions)}; choose from 1 to that, or leave it out"
        )
    return sample_in_order(questions, count, seed=seed)


def depth_option(encoder: TextEncoder, layers: int | None) -> dict[str, int]:
    """Return the keyword with which an encoder stops after `layers` layers."""
    if layers is None:
        return {}
    if "num_layers" not in inspect.signature(encoder.encode).parameters:
        raise ValueError(
            f"layers={layers}, but a {type(encoder).__name__} always runs all its layers; leave layers out, or open "
            "the model by a recipe, as baselines/all-minilm-l6-v2 does"
        )
    return {"num_layers": layers}


def encode(
    encoder: TextEncoder, questions: Sequence[Question], documents: Sequence[Document], **options: Any
) -> Vectors:
    """Return vectors of both sides with all dimensions, from which shorter ones are truncated."""
    texts, contents = [question.text for question in questions], [document.content for document in documents]
    start = time.perf_counter()
    asked = np.asarray(encoder.encode_query(texts, **options), dtype=np.float32)
    middle = time.perf_counter()
    given = np.asarray(encoder.encode_document(contents, **options), dtype=np.float32)
    return Vectors(asked, given, middle - start, time.perf_counter() - middle)


def nearest(vectors: Vectors, dims: int | None = None) -> tuple[np.ndarray, dict[str, float]]:
    """Return the index of each question's nearest document, `(questions,)`, and the seconds of indexing and searching.

    Vectors are truncated to `dims` and normalised; Euclidean distances of unit vectors rank as their cosines.
    """
    import faiss

    start = time.perf_counter()
    truncated = f" truncated to {dims} dimensions" if dims else ""
    documents = unit_vectors(vectors.documents[:, :dims], what=f"documents{truncated}")
    index = faiss.IndexFlatL2(documents.shape[1])
    index.add(documents)
    indexed = time.perf_counter()
    questions = unit_vectors(vectors.questions[:, :dims], what=f"questions{truncated}")
    index.search(questions[:1], 1)  # starts faiss' threads before the clock
    searching = time.perf_counter()
    found = index.search(questions, 1)[1][:, 0]
    return found, {"index_seconds": indexed - start, "search_seconds": time.perf_counter() - searching}


def evaluate_rag(
    questions: Sequence[Question],
    documents: Sequence[Document],
    vectors: Vectors,
    *,
    dims: int | None = None,
    generator: Generator | None = None,
    batch_size: int = 8,
    show_progress_bar: bool = False,
) -> dict[str, Any]:
    """Return scores of one cell; the main one is exact match if there is a generator, else answer recall.

    Answer recall@1 is the share of questions whose nearest document contains an answer, among questions whose answers a
    document can contain (other than yes and no).

    Raises:
        ValueError: without a generator, no question has an answer that a document can contain.
    """
    found, seconds = nearest(vectors, dims)
    contexts = [documents[i].content for i in found]
    findable = [can_be_found(question.answers) for question in questions]
    contained = [contains_answer(text, question.answers) for text, question in zip(contexts, questions, strict=True)]
    recalled = [float(inside) for inside, counts in zip(contained, findable, strict=True) if counts]
    if not recalled and generator is None:
        raise ValueError("every answer is yes, no or empty, which no context contains; give a generator")
    scores: dict[str, Any] = {
        "answer_recall_at_1": math.fsum(recalled) / len(recalled) if recalled else None,
        "dimensions": dims or vectors.documents.shape[1],
        "encode_seconds": vectors.question_seconds + vectors.document_seconds,
        "question_seconds": vectors.question_seconds,
        "document_seconds": vectors.document_seconds,
        **seconds,
    }
    kept = range(len(questions)) if generator else [i for i, counts in enumerate(findable) if counts]
    examples: dict[str, list[Any]] = {
        "score": recalled,
        "question": [questions[i].id for i in kept],
        "retrieved": [documents[found[i]].id for i in kept],
        "contains_answer": [contained[i] for i in kept],
    }
    if generator is None:
        return {"main_score": scores["answer_recall_at_1"], **scores, "examples": examples}
    before, start = len(generator.known), time.perf_counter()
    texts = [question.text for question in questions]
    written = generator.answers(contexts, texts, batch_size=batch_size, show_progress_bar=show_progress_bar)
    scores |= {"answer_seconds": time.perf_counter() - start, "newly_answered": len(generator.known) - before}
    right = [float(exact_match(text, question.answers)) for text, question in zip(written, questions, strict=True)]
    scores["exact_match"] = math.fsum(right) / len(right)
    examples |= {"score": right, "answer": written}
    return {"main_score": scores["exact_match"], **scores, "examples": examples}


RAG = TaskKind(
    name="rag",
    metric="answer recall@1",
    prepare=prepare,
    corpus=True,
    grid=("layers", "dims"),
    file_settings=("answers",),
)
