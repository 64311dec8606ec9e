"""Test and dev sets as BEIR folders: held-out questions and a corpus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from embrew.adapting.preparation.matching import TextFinder, items, text_key
from embrew.adapting.preparation.question_parts import PartMatcher, is_long
from embrew.analysis.qa import QA
from embrew.data.beir import Document
from embrew.data.fingerprints import normalised
from embrew.files.writing import write_jsonl


def write_test_set(
    folder: Path,
    split: str,
    held_out: Sequence[QA],
    pairs: Sequence[QA],
    texts: Sequence[Document],
    trained_ids: set[str],
    max_documents: int,
    seed: int,
) -> dict[str, int]:
    """Write a BEIR folder: questions, and a corpus of right answers, wrong choices, other answers and passages.

    Other answers and passages that hold a right answer, or are a part of one, are left out: they would be relevant but
    count as irrelevant. A document that is a question has its id, so that the question does not find itself.

    Returns:
        Numbers of queries, documents, and distractors that were trained on.
    """
    right = {normalised(pair.answer): pair.answer for pair in held_out}
    wrong = {normalised(text): text for pair in held_out for text in pair.negatives}
    others = {normalised(pair.answer): pair.answer for pair in pairs}
    trained = {normalised(pair.answer) for pair in pairs} - set(right)
    for passage in texts:
        others[normalised(passage.content)] = passage.content
        if passage.id in trained_ids:
            trained.add(normalised(passage.content))
    chosen = {name: text for name, text in wrong.items() if name not in right}
    long = [answer for answer in right.values() if is_long(answer)]
    contains, is_part, keys = TextFinder(long, least=1), PartMatcher(long), set(map(text_key, right.values()))
    pool = sorted(
        name
        for name, text in others.items()
        if name not in {*right, *chosen} and not (contains(text) or is_part(text) or keys & items(text))
    )
    room = max(max_documents - len(right) - len(chosen), 0)
    if len(pool) > room:
        pool = random.Random(seed).sample(pool, room)
    corpus = {**right, **chosen, **{name: others[name] for name in sorted(pool)}}
    questions: dict[str, tuple[str, set[str]]] = {}
    for pair in held_out:
        questions.setdefault(normalised(pair.question), (pair.question, set()))[1].add(normalised(pair.answer))
    named = [(f"q{i}", text, answers) for i, (text, answers) in enumerate(questions.values())]
    id_of_question = dict(zip(questions, (name for name, *_ in named), strict=True))
    ids = {name: id_of_question.get(name, f"d{i}") for i, name in enumerate(corpus)}
    write_jsonl(
        folder / "corpus.jsonl", ({"_id": ids[name], "title": "", "text": text} for name, text in corpus.items())
    )
    write_jsonl(folder / "queries.jsonl", ({"_id": name, "text": text} for name, text, _ in named))
    (folder / "qrels").mkdir()
    lines = [f"{name}\t{ids[answer]}\t1" for name, _, answers in named for answer in sorted(answers)]
    (folder / "qrels" / f"{split}.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", encoding="utf-8"
    )
    return {"queries": len(named), "documents": len(corpus), "trained_distractors": len(trained & set(corpus))}
