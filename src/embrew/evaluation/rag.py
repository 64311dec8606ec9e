"""Retrieval-augmented answers by embedding size and depth: nearest context, answer recall, exact match, and times.

ESE: Espresso Sentence Embeddings (arXiv 2402.14776), section 4.3: contexts in faiss' IndexFlatL2 over unit vectors, the
nearest one to each question, a prompt, a generator, exact match (Table 3), encoding and search timed apart (Figure 6).
"""

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from embrew.data.documents import Document
from embrew.data.questions import Question
from embrew.evaluation.answers import can_be_found, contains_answer, exact_match
from embrew.evaluation.generation import Generator
from embrew.evaluation.tasks import Task
from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import unit_vectors

T = TypeVar("T")


class Common:
    """What the cells of a grid have in common, each thing kept until another of its sort is asked for."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, Any]] = {}

    def get(self, sort: str, key: Any, make: Callable[[], T]) -> T:
        """What was made for `key`, or a new one in place of the last of its sort."""
        if sort not in self._kept or self._kept[sort][0] != key:
            self._kept.pop(sort, None)  # two corpora's vectors may not fit into memory
            self._kept[sort] = key, make()
        made: T = self._kept[sort][1]
        return made


@dataclass(frozen=True)
class Vectors:
    """Vectors of all questions and documents at one depth, `(texts, dimensions)`, and the seconds each side took."""

    questions: np.ndarray
    documents: np.ndarray
    question_seconds: float
    document_seconds: float


def cells(task: Task) -> list[Task]:
    """A task for each number of layers and dimensions its settings list, named `NAME-l6-d128`; others as they are.

    Raises:
        ValueError: a number that is none, below 1, or there twice.
    """
    if task.kind != "rag":
        return [task]
    made = [task]
    for name in ("layers", "dims"):
        numbers = _numbers(task, name)
        if isinstance(task.settings.get(name), list | tuple):
            made = [
                replace(one, name=f"{one.name}-{name[0]}{number}", settings={**one.settings, name: number})
                for one in made
                for number in numbers
            ]
    return made


def check_grid(encoder: TextEncoder, tasks: Sequence[Task], options: Mapping[str, Any]) -> None:
    """Encode a word at each depth that is asked for, and see whether it has the dimensions.

    Raises:
        ValueError: a depth or a size that this encoder does not have.
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


def depth_option(encoder: TextEncoder, layers: int | None) -> dict[str, int]:
    """The keyword that stops an encoder after so many layers."""
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
    """Vectors of both sides with all their dimensions; smaller ones are cut from them."""
    texts, contents = [question.text for question in questions], [document.content for document in documents]
    start = time.perf_counter()
    asked = np.asarray(encoder.encode_query(texts, **options), dtype=np.float32)
    middle = time.perf_counter()
    given = np.asarray(encoder.encode_document(contents, **options), dtype=np.float32)
    return Vectors(asked, given, middle - start, time.perf_counter() - middle)


def nearest(vectors: Vectors, dims: int | None = None) -> tuple[np.ndarray, dict[str, float]]:
    """The row of each question's nearest document, `(questions,)`, and the seconds of indexing and of searching.

    Vectors are cut to `dims`, then brought to unit length, where Euclidean distance ranks as the cosine does.
    """
    import faiss

    start = time.perf_counter()
    cut = f" cut to {dims} dimensions" if dims else ""
    documents = unit_vectors(vectors.documents[:, :dims], what=f"documents{cut}")
    index = faiss.IndexFlatL2(documents.shape[1])
    index.add(documents)
    indexed = time.perf_counter()
    questions = unit_vectors(vectors.questions[:, :dims], what=f"questions{cut}")
    index.search(questions[:1], 1)  # starts faiss' threads
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
    """Scores of one cell; the main one is exact match where there is a generator, else answer recall.

    Answer recall@1 is the share of questions whose nearest document contains an answer, of those whose answers a
    document can contain (yes and no are not among them).

    Raises:
        ValueError: without a generator, questions of which none can be judged.
    """
    found, seconds = nearest(vectors, dims)
    contexts = [documents[place].content for place in found]
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


def _numbers(task: Task, name: str) -> list[int | None]:
    given = task.settings.get(name)
    listed = given if isinstance(given, list | tuple) else [given]
    wrong = [number for number in listed if type(number) is not int or number < 1]
    if given is None:
        return [None]
    if wrong or not listed or len(set(listed)) < len(listed):
        raise ValueError(f"task {task.name}: {name}={given!r}; give numbers above 0, each once, e.g. [64, 128]")
    return list(listed)
