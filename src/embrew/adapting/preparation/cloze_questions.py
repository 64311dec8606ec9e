"""Questions from passages (inverse cloze task), for users without pairs or with too few to train on."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from embrew.adapting.preparation.matching import TextFinder, text_key
from embrew.adapting.preparation.split import Split
from embrew.analysis.qa import QA
from embrew.data.beir import Document
from embrew.data.documents import split_sentences


def split_documents(
    documents: Sequence[Document], parts: Mapping[str, Sequence[Document]], *, share: float, seed: int
) -> Split:
    """Hold out a share of the documents; of a single document none (see `last_passages`)."""
    names = [document.id for document in documents if parts[document.id]]
    if len(names) < 2:
        return Split((), frozenset(), False, 0)
    chosen = random.Random(seed).sample(names, max(1, round(share * len(names))))
    return Split((), frozenset(chosen), True, 0)


def last_passages(
    documents: Sequence[Document], parts: Mapping[str, Sequence[Document]], *, share: float
) -> list[Document]:
    """Return the last passages, a share of all, which are held out of a single document."""
    several = [passage for document in documents for passage in parts[document.id]]
    return list(several[len(several) - round(share * len(several)) :])


def cloze_pair(passage: Document) -> QA | None:
    """Return a passage's first sentence as a question and the rest as its answer; None if the passage is too short.

    The inverse cloze task (Lee et al., 2019), with the first instead of a random sentence.
    """
    sentences = split_sentences(passage.text)
    rest = " ".join(sentences[1:])
    if len(sentences) < 2 or len(sentences[0].split()) < 4 or len(rest.split()) < 8:
        return None
    return QA(sentences[0], rest, source=passage.id)


def without_repeated_questions(pairs: Iterable[QA], passages: Sequence[Document]) -> list[QA]:
    """Return the pairs whose question is in none of the passages; a common first sentence is not a useful question."""
    candidates = list(pairs)
    find = TextFinder((pair.question for pair in candidates), least=1)
    repeated = {name for passage in passages for name in find(passage.content)}
    return [pair for pair in candidates if text_key(pair.question) not in repeated]
