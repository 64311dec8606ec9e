"""Retrieval-augmented answers by number of layers and dimensions: answer recall, exact match, and times.

ESE: Espresso Sentence Embeddings (arXiv 2402.14776), section 4.3: contexts in faiss' IndexFlatL2 over unit vectors, the
nearest one to each question, a prompt, a generator, exact match (Table 3), encoding and search timed separately
(Figure 6).
"""

import inspect
import math
import re
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

import numpy as np

from embrew.data.beir import Document, RetrievalData, read_beir, record_id
from embrew.data.canonical import Converter
from embrew.data.columns import Layout
from embrew.data.datasets import load
from embrew.data.formats import named, read_file
from embrew.data.reading import find_file
from embrew.evaluation.generator import Generator
from embrew.evaluation.kinds.retrieval import select_documents, with_setting
from embrew.evaluation.task import Columns, GridCache, NamedScores, Task, TaskKind, without_instruction
from embrew.extras import import_extra
from embrew.ranking import sample_in_order
from embrew.text_encoder import EncodeOptions, TextEncoder, unit_vectors

_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question, and the texts of which each answers it."""

    id: str
    text: str
    answers: tuple[str, ...]


def read_questions(
    folder: Path, data: RetrievalData, *, answers: Path | None = None, columns: Mapping[str, str] | None = None
) -> list[Question]:
    """Return the queries of a BEIR folder with their answers.

    Args:
        data: Content of the folder.
        answers: Rows with `question`, `answers` (or `answer`) and, if questions are not unique, `context`: the text of
            the relevant document. Default: the column `answers` (or `answer`) of the queries.
        columns: Canonical column -> column in the file, for names that are not known.

    Raises:
        ValueError: there are no answers, or a query has none; names the first.
    """
    answers_of = (
        _answers_of_queries(folder, data, columns) if answers is None else _answers_of_file(data, answers, columns)
    )
    without = [query for query in data.qrels if not answers_of.get(query)]
    if without:
        source = answers or folder
        raise ValueError(
            f"{source} has no answer for {len(without)} of {len(data.qrels)} queries, the first: {without[0]!r} "
            f"({data.queries[without[0]]!r}); the file must hold each question and the text of its relevant document "
            "verbatim"
        )
    return [Question(query, data.queries[query], tuple(dict.fromkeys(answers_of[query]))) for query in data.qrels]


def _answers_of_queries(
    folder: Path, data: RetrievalData, columns: Mapping[str, str] | None
) -> dict[str, Sequence[str]]:
    file = find_file(folder, "queries")
    assert file is not None, "the folder was read before"
    wanted = (columns or {}).get("answers")
    answers: dict[str, Sequence[str]] = {}
    for record in read_file(file):
        query = record_id(record)
        if query not in data.qrels:
            continue
        column = wanted or named(record.values, "answers") or named(record.values, "answer")
        if column is None or column not in record.values:
            raise ValueError(
                f"{record.where} has no column {wanted or 'answers'}; found {', '.join(record.values)}. Add it, or "
                "name a file of answers in the suite, answers: FILE"
            )
        values = {"question": data.queries[query], "answers": record.values[column]}
        layout: Layout = {"question": ("question",), "answers": ("answers",)}
        (row,) = Converter(layout, "answered")(record._replace(values=values))
        answers[query] = row["answers"]
    return answers


def _answers_of_file(data: RetrievalData, answers: Path, columns: Mapping[str, str] | None) -> dict[str, Sequence[str]]:
    rows = load(answers, kind="answered", columns=columns)
    texts = {document.id: document.text for document in data.corpus}
    by_context: dict[tuple[str, str | None], list[str]] = {}
    by_question: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        question, context = row["question"].strip(), row["context"] and row["context"].strip()
        by_context.setdefault((question, context), []).extend(row["answers"])
        if context is None:
            by_question.setdefault(question, set()).add(tuple(row["answers"]))
    twice = next((question for question, ways in by_question.items() if len(ways) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{answers} answers the question {twice!r} in several ways and has no column context to tell them "
            "apart; map it with columns: {context: my_column}"
        )
    by_query: dict[str, Sequence[str]] = {}
    for query, grades in data.qrels.items():
        question = data.queries[query].strip()
        contexts = [texts[document].strip() for document, grade in grades.items() if grade > 0 and document in texts]
        by_query[query] = [text for context in (*contexts, None) for text in by_context.get((question, context), ())]
    return by_query


def normalise(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and the articles a, an, the, with single spaces.

    Examples:
        >>> normalise(" The  U.S. Army, an  army")
        'us army army'
    """
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Return whether a prediction equals one of the answers after normalisation."""
    return normalise(prediction) in {normalise(answer) for answer in answers}


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether a text contains one of the answers as whole words, both normalised; 1910 does not contain 10.

    An answer that is empty after normalisation is in no text.
    """
    searched = normalise(text)
    normalised = (normalise(answer) for answer in answers)
    return any(answer and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", searched) for answer in normalised)


def can_be_found(answers: Sequence[str]) -> bool:
    """Return whether a context could contain one of the answers: texts do not quote `yes` or `no` (HotpotQA)."""
    return any(normalise(answer) not in ("", "yes", "no") for answer in answers)


@dataclass(frozen=True, eq=False)
class RagData:
    """Questions, the documents that are not empty, and the number of empty ones.

    Attributes:
        own: Index of each question's self-match among the documents, −1 without one; empty: no question has one.
    """

    questions: Sequence[Question]
    documents: Sequence[Document]
    empty: int = 0
    self_matches: Sequence[int] = ()


@dataclass(frozen=True)
class SideVectors:
    """Vectors `(texts, dimensions)` of all questions and documents at one depth, and the seconds per side."""

    questions: np.ndarray
    documents: np.ndarray
    question_seconds: float
    document_seconds: float


def read(
    task: Task,
    *,
    questions: int | None = None,
    documents: Literal["all", "judged"] = "all",
    distractors: int = 0,
    seed: int = 42,
    answers: str | None = None,
    columns: Columns = None,
    ignore_identical_ids: bool = False,
) -> RagData:
    """Return a sample of the questions that have answers, and the documents."""
    data = with_setting(read_beir(task.path, task.split), ignore_identical_ids=ignore_identical_ids)
    answered = read_questions(task.path, data, answers=None if answers is None else task.files[-1], columns=columns)
    if questions is not None and not 1 <= questions <= len(answered):
        raise ValueError(
            f"questions={questions}, but the split has {len(answered)}; choose from 1 to that, or leave it out"
        )
    corpus = select_documents(data, documents=documents, distractors=distractors, seed=seed).corpus
    # An empty document's vector may be zero, which is nearer to a question than an unrelated document is.
    filled = sorted((doc for doc in corpus if doc.content.strip()), key=lambda doc: doc.id)
    sample = sample_in_order(answered, questions, seed=seed)
    positions = {document.id: i for i, document in enumerate(filled) if document.id in data.self_matches}
    self_matches = [positions.get(question.id, -1) for question in sample] if positions else []
    return RagData(sample, filled, len(corpus) - len(filled), self_matches)


def score_rag(
    encoder: TextEncoder,
    data: RagData,
    cache: GridCache,
    *,
    dims: int | None = None,
    layers: int | None = None,
    generator: str | None = None,
    max_new_tokens: int = 32,
    batch_size: int = 8,
    **options: Unpack[EncodeOptions],
) -> NamedScores:
    """Return answer recall of one cell, and exact match, which is then the main score, if there is a generator.

    Answer recall@1 is the share of questions whose nearest document contains an answer, among questions whose answers a
    document can contain (other than yes and no).
    """
    import_extra("faiss", "search", "a task of kind rag")  # before texts are encoded
    writer = None
    if generator is not None:  # before texts are encoded, since it may not fit into memory
        generator_key = generator, max_new_tokens
        writer = cache.get("generator", generator_key, lambda: Generator.open(generator, max_new_tokens=max_new_tokens))
    options_at_depth: EncodeOptions = {**options, **depth_option(without_instruction(encoder), layers)}
    vectors = cache.get("vectors", (data, encoder, layers), lambda: encode_sides(encoder, data, **options_at_depth))
    indices, seconds = nearest(vectors, dims, self_matches=data.self_matches)
    documents = [data.documents[i] for i in indices]
    can_be = [can_be_found(question.answers) for question in data.questions]
    contains = [contains_answer(d.content, q.answers) for d, q in zip(documents, data.questions, strict=True)]
    recalled = [float(contains[i]) for i, counts in enumerate(can_be) if counts]
    recall = math.fsum(recalled) / len(recalled) if recalled else None
    sizes = {"layers": layers, "dimensions": dims or vectors.documents.shape[1]}
    encoding = {"question_seconds": vectors.question_seconds, "document_seconds": vectors.document_seconds}
    listed = [i for i, counts in enumerate(can_be) if counts or writer]
    counts = {"queries": len(data.questions), "documents": len(data.documents)}
    scores = {
        "main_score": recall,
        "answer_recall_at_1": recall,
        **sizes,
        "encode_seconds": sum(encoding.values()),
        **encoding,
        **seconds,
        "counts": {
            **counts,
            "empty_documents": data.empty,
            "queries_with_span": sum(can_be),
            "self_matches": sum(i >= 0 for i in data.self_matches),
        },
        "examples": {
            "score": recalled,
            "question": [data.questions[i].id for i in listed],
            "retrieved": [documents[i].id for i in listed],
            "contains_answer": [contains[i] for i in listed],
        },
    }
    if writer is None and not recalled:
        raise ValueError("every answer is yes, no or empty, which no context contains; give a generator")
    if writer is not None:
        add_answers(scores, writer, data.questions, documents, batch_size, bool(options.get("show_progress_bar")))
    return scores


def add_answers(
    scores: NamedScores,
    writer: Generator,
    questions: Sequence[Question],
    documents: Sequence[Document],
    batch_size: int,
    show_progress_bar: bool,
) -> None:
    """Let a generator answer each question from its document; add exact match, which is then the main score."""
    before, start = len(writer.answered), time.perf_counter()
    answers = writer.answers(
        [document.content for document in documents],
        [question.text for question in questions],
        batch_size=batch_size,
        show_progress_bar=show_progress_bar,
    )
    scores |= {"answer_seconds": time.perf_counter() - start, "newly_answered": len(writer.answered) - before}
    right = [float(exact_match(text, reference.answers)) for text, reference in zip(answers, questions, strict=True)]
    scores["main_score"] = scores["exact_match"] = math.fsum(right) / len(right)
    scores["examples"] |= {"score": right, "answer": answers}


def depth_option(encoder: TextEncoder, layers: int | None) -> EncodeOptions:
    """Return the keyword with which an encoder stops after `layers` layers."""
    if layers is None:
        return {}
    if "num_layers" not in inspect.signature(encoder.encode).parameters:
        raise ValueError(
            f"layers={layers}, but a {type(encoder).__name__} always runs all its layers; leave layers out, or open "
            "the model by a recipe, as baselines/all-minilm-l6-v2 does"
        )
    return {"num_layers": layers}


def encode_sides(encoder: TextEncoder, data: RagData, **options: Unpack[EncodeOptions]) -> SideVectors:
    """Return vectors of both sides with all dimensions, from which shorter ones are truncated."""
    start = time.perf_counter()
    questions = encoder.encode_query([question.text for question in data.questions], **options)
    middle = time.perf_counter()
    documents = encoder.encode_document([document.content for document in data.documents], **options)
    seconds = middle - start, time.perf_counter() - middle
    return SideVectors(np.asarray(questions, dtype=np.float32), np.asarray(documents, dtype=np.float32), *seconds)


def nearest(
    vectors: SideVectors, dims: int | None = None, *, self_matches: Sequence[int] = ()
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the index of each question's nearest document, `(questions,)`, and the seconds of indexing and searching.

    Vectors are truncated to `dims` and normalised; Euclidean distances of unit vectors rank as their cosines.

    Args:
        vectors: Vectors of questions and documents.
        dims: Number of leading dimensions that are compared; None: all.
        self_matches: `RagData.self_matches`, documents that are not taken.

    Raises:
        ValueError: a question has no other document.
    """
    faiss = import_extra("faiss", "search", "a task of kind rag")
    start = time.perf_counter()
    truncated = f" truncated to {dims} dimensions" if dims else ""
    documents = unit_vectors(vectors.documents[:, :dims], what=f"documents{truncated}")
    index = faiss.IndexFlatL2(documents.shape[1])
    index.add(documents)
    indexed = time.perf_counter()
    questions = unit_vectors(vectors.questions[:, :dims], what=f"questions{truncated}")
    index.search(questions[:1], 1)  # starts faiss' threads before the clock
    searching = time.perf_counter()
    indices = index.search(questions, 1 + bool(self_matches))[1]
    if self_matches:
        indices = np.where(indices[:, :1] == np.array(self_matches)[:, None], indices[:, 1:], indices)
        if (indices[:, 0] < 0).any():
            raise ValueError("a question is the only document of the corpus; give others")
    return indices[:, 0], {"index_seconds": indexed - start, "search_seconds": time.perf_counter() - searching}


RAG = TaskKind(
    name="rag",
    metric="answer recall@1",
    score=score_rag,
    read=read,
    corpus=True,
    grid=("layers", "dims"),
)
