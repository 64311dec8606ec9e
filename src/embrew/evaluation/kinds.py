"""One function for each kind of task: read its data once, then judge encoders, and say how much was judged."""

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from embrew.data.beir import RetrievalData, is_beir, read_beir
from embrew.data.datasets import load
from embrew.data.documents import Document
from embrew.data.questions import Question, read_questions
from embrew.evaluation.answers import can_be_found
from embrew.evaluation.classification import evaluate_classification
from embrew.evaluation.clustering import evaluate_clustering
from embrew.evaluation.generation import Generator
from embrew.evaluation.instructed import Instructed, instructed
from embrew.evaluation.pair_classification import evaluate_pair_classification
from embrew.evaluation.rag import Common, depth_option, encode, evaluate_rag
from embrew.evaluation.reranking import evaluate_reranking
from embrew.evaluation.retention import choose, evaluate_retention, held_out
from embrew.evaluation.retrieval import evaluate_retrieval
from embrew.evaluation.rows import task_retrieval, task_rows, training_rows
from embrew.evaluation.sts import Protocol, evaluate_sts
from embrew.evaluation.summarization import evaluate_summarization
from embrew.evaluation.tasks import Kind, Task
from embrew.text_encoder.interface import TextEncoder

Judged = tuple[dict[str, Any], dict[str, int]]  # scores with `main_score`, and how much was judged
Judge = Callable[[TextEncoder, Mapping[str, Any]], Judged]  # an encoder, and keywords for its encode methods
Columns = Mapping[str, str] | None
COMMON = ("instruction", "context")  # settings that every kind has


def judge(encoder: TextEncoder, task: Task, options: Mapping[str, Any], common: Common | None = None) -> Judged:
    """Scores and counts of an encoder on a task; `options` go to the encode methods.

    Tasks of one grid that are given the same `common` share what is expensive. The setting `instruction`, which every
    kind has, is put before texts and queries; so is the encoder's context that the setting `context` names.
    """
    if task.kind != "rag":
        return prepare(task)(encoder, options)
    settings = {name: value for name, value in task.settings.items() if name not in COMMON}
    judged = instructed(encoder, task.settings)
    return _rag(encoder, judged, task, options, common or Common(), **settings)


def prepare(task: Task) -> Judge:
    """`judge` for several encoders: the data is read here, once.

    Raises:
        ValueError: retrieval-augmented answers, whose settings say layers and dimensions themselves.
    """
    if task.kind == "rag":
        raise ValueError(f"task {task.name}: rag has settings layers and dims of its own; list them in a suite instead")
    settings = {name: value for name, value in task.settings.items() if name not in COMMON}
    judged: Judge = JUDGES[task.kind](task, **settings)
    return lambda encoder, options: judged(instructed(encoder, task.settings), options)


def check_settings(task: Task) -> None:
    """Raise where a setting is not one of the task's kind."""
    parameters = inspect.signature(JUDGES[task.kind]).parameters.values()
    allowed = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY] + [*COMMON]
    unknown = sorted(set(task.settings) - set(allowed))
    if unknown:
        raise ValueError(
            f"task {task.name}: {', '.join(unknown)} is no setting of {task.kind}; choose from {', '.join(allowed)}"
        )


def select_documents(
    data: RetrievalData, *, documents: Literal["all", "judged"], distractors: int, seed: int
) -> RetrievalData:
    """The whole corpus, or the documents judged in this split and a seeded sample of the others."""
    if documents not in ("all", "judged"):
        raise ValueError(f"documents={documents!r}; choose from all, judged")
    if documents == "all":
        if distractors:
            raise ValueError(f"distractors={distractors} needs documents: judged; all has every document already")
        return data
    judged = {document for grades in data.qrels.values() for document in grades}
    others = sorted(document.id for document in data.corpus if document.id not in judged)
    if distractors > len(others):
        raise ValueError(f"distractors={distractors}, but the corpus has {len(others)} documents that are not judged")
    kept = judged | set(random.Random(seed).sample(others, distractors))
    return replace(data, corpus=[document for document in data.corpus if document.id in kept])


def sample_questions(questions: list[Question], count: int | None, *, seed: int) -> list[Question]:
    """All questions, or a seeded sample of `count`, in their order."""
    if count is None:
        return questions
    if not 1 <= count <= len(questions):
        raise ValueError(
            f"questions={count}, but the split has {len(questions)}; choose from 1 to that, or leave it out"
        )
    chosen = random.Random(seed).sample(range(len(questions)), count)
    return [questions[i] for i in sorted(chosen)]


def _sts(task: Task, *, protocol: Protocol = "all", columns: Columns = None) -> Judge:
    rows = task_rows(task, "scored", columns)
    left, right, gold, subsets = (list(rows[name]) for name in ("sentence1", "sentence2", "score", "subset"))

    def judged(encoder: TextEncoder, options: Mapping[str, Any]) -> Judged:
        scores = evaluate_sts(encoder, left, right, gold, subsets=subsets, protocol=protocol, **options)
        return scores, {"pairs": len(gold)}

    return judged


def _retrieval(
    task: Task, *, documents: Literal["all", "judged"] = "all", distractors: int = 0, seed: int = 42
) -> Judge:
    data = select_documents(task_retrieval(task), documents=documents, distractors=distractors, seed=seed)
    return lambda encoder, options: evaluate_retrieval(encoder, data, **options)


def _pair_classification(task: Task, *, columns: Columns = None) -> Judge:
    rows = task_rows(task, "labelled_pairs", columns)
    left, right, labels = (list(rows[name]) for name in ("sentence1", "sentence2", "label"))
    counts = {"pairs": len(labels)}
    return lambda encoder, options: (evaluate_pair_classification(encoder, left, right, labels, **options), counts)


def _classification(
    task: Task, *, samples_per_label: int = 8, experiments: int = 10, seed: int = 42, columns: Columns = None
) -> Judge:
    judged_on = (
        load(task.path, kind="labelled", split=task.split, columns=columns)
        if task.part is None
        else task_rows(task, "labelled", columns)
    )
    train, test = ((list(rows["text"]), list(rows["label"])) for rows in (training_rows(task, columns), judged_on))

    def judged(encoder: TextEncoder, options: Mapping[str, Any]) -> Judged:
        scores = evaluate_classification(
            encoder, train, test, samples_per_label=samples_per_label, experiments=experiments, seed=seed, **options
        )
        return scores, {"texts": len(test[0]), "classes": len(set(train[1]))}

    return judged


def _clustering(
    task: Task, *, repeats: int = 10, batch_size: int = 512, seed: int = 42, columns: Columns = None
) -> Judge:
    rows = task_rows(task, "labelled", columns)
    texts, labels = list(rows["text"]), list(rows["label"])
    settings: dict[str, Any] = {"repeats": repeats, "batch_size": batch_size, "seed": seed}
    counts = {"texts": len(texts), "classes": len(set(labels))}
    return lambda encoder, options: (evaluate_clustering(encoder, texts, labels, **settings, **options), counts)


def _reranking(task: Task, *, columns: Columns = None) -> Judge:
    rows = task_rows(task, "candidates", columns)
    queries, positives, negatives = (list(rows[name]) for name in ("query", "positive", "negative"))
    counts = {"queries": len(queries), "documents": sum(map(len, positives)) + sum(map(len, negatives))}
    return lambda encoder, options: (evaluate_reranking(encoder, queries, positives, negatives, **options), counts)


def _summarization(task: Task, *, columns: Columns = None) -> Judge:
    rows = task_rows(task, "summaries", columns)
    human, machine, relevance = (list(rows[name]) for name in ("human_summaries", "machine_summaries", "relevance"))
    counts = {"texts": len(human), "summaries": sum(map(len, machine))}
    return lambda encoder, options: (evaluate_summarization(encoder, human, machine, relevance, **options), counts)


def _generation(
    task: Task,
    *,
    questions: int | None = None,
    max_chars: int | None = None,
    max_new_tokens: int = 128,
    source: Literal["auto", "memory", "text"] = "auto",
    bos: Literal["visible", "strict"] = "visible",
    batch_size: int = 16,
    seed: int = 42,
    columns: Columns = None,
) -> Judge:
    if is_beir(task.path):
        pairs = held_out(read_beir(task.path, task.split))
    else:
        rows = task_rows(task, "pairs", columns)
        pairs = list(rows["query"]), list(rows["positive"])
    asked, answers = choose(pairs, max_chars=max_chars, count=questions, seed=seed)

    def judged(encoder: TextEncoder, options: Mapping[str, Any]) -> Judged:
        if isinstance(encoder, Instructed) and encoder.context is not None:
            raise ValueError(
                f"task {task.name}: retention reads no demonstrations; leave out context={encoder.context!r}"
            )
        bare, instruction = (
            (encoder.encoder, encoder.instruction) if isinstance(encoder, Instructed) else (encoder, None)
        )
        scores = evaluate_retention(
            bare,
            asked,
            answers,
            instruction=instruction,
            source=source,
            bos=bos,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            **{key: options[key] for key in ("batch_tokens", "show_progress_bar") if key in options},
        )
        return scores, {"queries": len(asked)}

    return judged


def _rag(
    encoder: TextEncoder,
    judged: TextEncoder,
    task: Task,
    options: Mapping[str, Any],
    common: Common,
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
) -> Judged:
    def read() -> tuple[list[Question], list[Document], int]:
        data = read_beir(task.path, task.split)
        file = task.files[-1] if answers is not None else None
        asked = sample_questions(read_questions(task.path, data, answers=file, columns=columns), questions, seed=seed)
        corpus = select_documents(data, documents=documents, distractors=distractors, seed=seed).corpus
        # An empty document's vector may be zero, which lies nearer to a question than a document that has little to do
        # with it.
        filled = sorted((one for one in corpus if one.content.strip()), key=lambda one: one.id)
        return asked, filled, len(corpus) - len(filled)

    # Only the settings that follow differ within what is read once.
    later = {"dims", "layers", "generator", "max_new_tokens", "batch_size", *COMMON}
    source = task.files, task.split, repr({name: value for name, value in task.settings.items() if name not in later})
    asked, corpus, empty = common.get("data", source, read)
    model = None
    if generator is not None:  # before the texts are encoded: it may not fit into memory
        key = generator, max_new_tokens
        model = common.get("generator", key, lambda: Generator.open(generator, max_new_tokens=max_new_tokens))
    how = {**options, **depth_option(encoder, layers)}
    place = source, layers, *(task.settings.get(name) for name in COMMON)
    vectors = common.get("vectors", place, lambda: encode(judged, asked, corpus, **how))
    shown = bool(options.get("show_progress_bar"))
    scores = evaluate_rag(
        asked, corpus, vectors, dims=dims, generator=model, batch_size=batch_size, show_progress_bar=shown
    )
    found = sum(can_be_found(question.answers) for question in asked)
    counts = {"queries": len(asked), "documents": len(corpus), "empty_documents": empty, "queries_with_span": found}
    return {**scores, "layers": layers}, counts


JUDGES: dict[Kind, Callable[..., Any]] = {  # from a task to a `Judge`; rag judges at once
    "sts": _sts,
    "retrieval": _retrieval,
    "pair_classification": _pair_classification,
    "classification": _classification,
    "clustering": _clustering,
    "reranking": _reranking,
    "summarization": _summarization,
    "rag": _rag,
    "generation": _generation,
}
