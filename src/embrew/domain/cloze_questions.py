"""Questions made of passages, where users give no pairs or too few to train on."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from embrew.data.documents import Document
from embrew.data.qa import QA
from embrew.data.sentences import split_sentences
from embrew.domain.matching import Finder, key
from embrew.domain.split import TEST_SHARE, Split


def split_documents(documents: Sequence[Document], parts: Mapping[str, Sequence[Document]], *, seed: int) -> Split:
    """A fifth of the documents held out, of at least two; none of a single one, whose last passages are."""
    names = [document.id for document in documents if parts[document.id]]
    if len(names) < 2:
        return Split((), frozenset(), False, 0)
    chosen = random.Random(seed).sample(names, max(1, round(TEST_SHARE * len(names))))
    return Split((), frozenset(chosen), True, 0)


def last_passages(documents: Sequence[Document], parts: Mapping[str, Sequence[Document]]) -> list[Document]:
    """The last fifth of a document's passages."""
    several = [passage for document in documents for passage in parts[document.id]]
    return list(several[len(several) - round(TEST_SHARE * len(several)) :])


def made_of(passage: Document) -> QA | None:
    """A passage's first sentence as a question, and the rest of it as its answer; None where there is too little.

    The inverse cloze task (Lee et al., 2019), with the first sentence for a random one.
    """
    sentences = split_sentences(passage.text)
    rest = " ".join(sentences[1:])
    if len(sentences) < 2 or len(sentences[0].split()) < 4 or len(rest.split()) < 8:
        return None
    return QA(sentences[0], rest, source=passage.id)


def asked_nowhere_else(pairs: Iterable[QA], passages: Sequence[Document]) -> list[QA]:
    """The made pairs whose question stands in none of these passages: a phrase that many begin with asks nothing."""
    given = list(pairs)
    find = Finder((pair.question for pair in given), least=1)
    repeated = {name for passage in passages for name in find(passage.content)}
    return [pair for pair in given if key(pair.question) not in repeated]
