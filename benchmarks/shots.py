"""Demonstrations of the evidence's tasks, and an encoder that puts them before what it is asked to embed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from planned import file_name

from embrew.data.fingerprints import normalised
from embrew.encoder import Encoder
from embrew.evaluation import find_task
from embrew.evaluation.overlap import task_texts
from embrew.evaluation.suites import Suite
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration

MOST_CHARS = 300  # of a query, and of a passage
CONDITIONS = ("right", "shuffled")  # of demonstrations
SEED = 7  # of the choice among training rows


class Shots:
    """`encoder`, whose prompts are instructions without form, with demonstrations of the tasks they are of.

    Args:
        encoder: what is judged.
        form: how it was trained to read an instruction; `{instruction}` is filled in.
        pairs: demonstrations by instruction; none: the plain prompt.
    """

    def __init__(self, encoder: Encoder, form: str, pairs: Mapping[str, Sequence[Demonstration]]) -> None:
        self._encoder, self._form = encoder, form
        self._names = {instruction: file_name(instruction) for instruction in pairs}
        for instruction, several in pairs.items():
            encoder.add_context(self._names[instruction], Context(self._filled(instruction), tuple(several)))

        said = [[instruction, *map(tuple, several)] for instruction, several in sorted(pairs.items())]
        self._shown = hashlib.sha256(json.dumps([form, said]).encode()).hexdigest()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def describe(self) -> dict[str, Any]:
        """What the encoder says of itself, with a hash of form and demonstrations, which distinguishes results."""
        return {**self._encoder.describe(), "shown": self._shown}

    def _filled(self, instruction: str) -> str:
        return self._form.replace("{instruction}", instruction)

    def _said(self, options: dict[str, Any]) -> dict[str, Any]:
        asked = options.get("prompt")
        if not asked:
            return options
        if asked in self._names:
            return {**options, "prompt": None, "prompt_name": self._names[asked]}
        return {**options, "prompt": self._filled(asked)}

    def encode(self, inputs: Any, *args: Any, batch_tokens: int | None = None, **options: Any) -> Any:
        """Vectors of texts."""
        return self._encoder.encode(inputs, *args, batch_tokens=batch_tokens, **self._said(options))

    def encode_query(self, inputs: Any, *args: Any, batch_tokens: int | None = None, **options: Any) -> Any:
        """Vectors of queries."""
        return self._encoder.encode_query(inputs, *args, batch_tokens=batch_tokens, **self._said(options))

    def encode_document(self, inputs: Any, *args: Any, batch_tokens: int | None = None, **options: Any) -> Any:
        """Vectors of documents, which have no demonstrations."""
        return self._encoder.encode_document(inputs, *args, batch_tokens=batch_tokens, **options)


def judge_shown(
    encoder: Encoder, form: str, suite: Suite, count: int, condition: str, judge: Callable[[Any, Suite], list[Any]]
) -> list[Any]:
    """Results of every task of a suite, each judged with its own demonstrations in a condition, or with none."""
    shown = shown_to(suite, count, condition)
    results = []
    for task in suite.tasks:
        encoder.contexts.clear()
        instruction = instruction_of(task)
        pairs = {instruction: shown[task.name]} if count and instruction is not None else {}
        results += judge(Shots(encoder, form, pairs), replace(suite, tasks=(task,), averages={}))
    return results


def shown_to(suite: Suite, count: int, condition: str = "right") -> dict[str, list[Demonstration]]:
    """`count` demonstrations of every task with an instruction, by its name; from training rows, the same every time.

    Conditions: `right`; `shuffled`: the same, each query with the passage of the one before.
    """
    if condition not in CONDITIONS:
        raise SystemExit(f"demonstrations: {condition}; choose from {', '.join(CONDITIONS)}")
    if condition == "shuffled" and count == 1:
        raise SystemExit("demonstrations: shuffled needs 2 or more shots")
    asked = [task for task in suite.tasks if instruction_of(task) is not None]
    found = {}
    for task in asked:
        source = folder_of(task)
        shown = list(candidates(source))[:count]
        if len(shown) < count:
            raise SystemExit(f"demonstrations: {source} has {len(shown)}, not {count}")
        if condition == "shuffled":
            before = [shown[-1], *shown[:-1]]
            shown = [Demonstration(pair.query, wrong.passage) for pair, wrong in zip(shown, before, strict=True)]
        found[task.name] = shown
    return found


def instruction_of(task: Any) -> str | None:
    """The instruction of a task of a suite."""
    found = task.settings.get("instruction") if hasattr(task, "settings") else None
    return None if found is None else str(found)


def folder_of(task: Any) -> str:
    """The name of a task's data folder."""
    return Path(task.path).name


@cache
def candidates(folder: str) -> tuple[Demonstration, ...]:
    """Demonstrations of a data folder's task, from its training rows; the same every time."""
    pairs = sorted({pair for pair in _read(folder) if max(map(len, pair)) <= MOST_CHARS})
    random.Random(SEED).shuffle(pairs)
    tested = _tested(folder)
    seen: set[str] = set()
    chosen = []
    for pair in pairs:  # classes, and paragraphs, once each
        if pair.passage not in seen and not tested & set(map(normalised, pair)):
            seen.add(pair.passage)
            chosen.append(pair)
    return tuple(chosen[:16])


def _tested(folder: str) -> set[str]:
    """Queries, or all texts, of a data folder's test split, normalised: training rows may have them too."""
    queries = next(task_texts(find_task(Path(os.environ["EMBREW_DATA"]) / folder)))[1]
    return {normalised(text) for text in queries}


def _read(folder: str) -> Iterator[Demonstration]:
    """Pairs of a task's training rows."""
    match folder:
        case "squad_retrieval":
            for row in rows_of("squad_instruct/train"):
                yield Demonstration(row["instruction"], row["context"])
        case "medquad_retrieval":
            asked = {row["text"] for row in rows_of("medquad_retrieval/queries")}
            for row in rows_of("medquad_pairs/train"):
                if row["query"] not in asked:
                    yield Demonstration(row["query"], row["positive"])
        case "banking77" | "emotion":
            for row in rows_of(f"{folder}/train"):
                yield Demonstration(row["text"], row["label_text"].replace("_", " "))
        case "STSB":
            for row in rows_of("STSB/train"):
                if row["score"] >= 4.5:
                    yield Demonstration(row["sentence1"], row["sentence2"])
        case "mrpc":
            for row in rows_of("mrpc/train"):
                if row["label"] == 1:
                    yield Demonstration(row["sentence1"], row["sentence2"])
        case "trecqa_reranking":
            for row in rows_of("trecqa_reranking/train"):
                for passage in row["positive"]:
                    yield Demonstration(row["query"], passage)
        case _:
            raise ValueError(f"no demonstrations are known for {folder}")


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """Rows of a file of `$EMBREW_DATA`, named without its ending."""
    with gzip.open(Path(os.environ["EMBREW_DATA"]) / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
