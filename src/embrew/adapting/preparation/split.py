"""Split pairs and documents into training and held-out parts that have nothing in common.

Without pairs, or with few, and without a writer, first sentences of passages are questions (inverse cloze task).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from embrew.adapting.defaults import HeldOut
from embrew.adapting.preparation.matching import (
    IDENTIFYING_WORDS,
    QuestionFinder,
    TextFinder,
    identifies,
    text_key,
    words,
)
from embrew.analysis.qa import QA
from embrew.data.beir import Document
from embrew.data.documents import split_sentences
from embrew.data.fingerprints import normalised

MAX_DOCUMENTS = 3  # a question in more documents than this is linked to none of them
LARGEST = 1.5  # size of a held-out part, as a multiple of what is wanted
CLASS_SIZE = 5  # pairs with one short answer from which it is a class: a fifth of them, the test's share, is one pair


@dataclass(frozen=True)
class Split:
    """The part of each pair, and the held-out documents.

    Attributes:
        parts: `train`, `dev` or `test`, for each pair.
        held_out: ids of the documents of held-out pairs.
        by_document: whether pairs of one document were kept together.
        linked: number of pairs whose document is known, by their `source` or because it holds their question or answer.
    """

    parts: tuple[str, ...]
    held_out: frozenset[str]
    by_document: bool
    linked: int


def split_pairs(pairs: Sequence[QA], documents: Sequence[Document], held_out: HeldOut, *, seed: int = 42) -> Split:
    """Hold out pairs for a test and a dev set.

    Pairs with the same question, the same answer of `IDENTIFYING_WORDS` or more (ignoring case, white space and
    punctuation) or the same document stay together, and so do pairs connected through others. Shorter answers that many
    pairs have (`answer_classes`) are divided between the parts in proportion. Few pairs are all held out.
    If the documents connect most of the pairs (a single document, for instance), pairs are separated by question and
    answer only.

    Args:
        pairs: the pairs to split.
        documents: the documents that the pairs may be from.
        held_out: shares and numbers of pairs.
        seed: random seed.
    """
    from_document = find_documents(pairs, documents)
    linked = sum(bool(documents_of_pair) for documents_of_pair in from_document)
    groups, by_document = connected(pairs, from_document), True
    if max(map(len, groups), default=0) > len(pairs) / 2:
        apart = connected(pairs)
        if max(map(len, apart)) < max(map(len, groups)):
            groups, by_document = apart, False
    if len(pairs) < held_out.few:
        held: frozenset[str] = frozenset().union(*from_document)
        apart_by_document = len(held) < len(documents)  # else no document would be left to train on
        return Split(_halves(groups), held if apart_by_document else frozenset(), apart_by_document, linked)
    order = _in_proportion(pairs, groups, seed=seed)
    parts = ["train"] * len(pairs)
    least_dev = min(held_out.least_dev, len(pairs) // 5)
    numbers = {
        "test": min(round(held_out.test * len(pairs)), held_out.most_test),
        "dev": min(max(round(held_out.dev * len(pairs)), least_dev), held_out.most_dev),
    }
    for part, wanted in numbers.items():
        count = 0
        for group in order:
            if parts[group[0]] == "train" and count + len(group) <= wanted * LARGEST and count < wanted:
                count += len(group)
                for i in group:
                    parts[i] = part
    for part in numbers:  # one group of nearly all pairs: small groups are held out, and it is trained on
        if part not in parts:
            groups_of = {
                where: [group for group in groups if parts[group[0]] == where] for where in ("train", *numbers)
            }
            spare = next((several for several in groups_of.values() if len(several) > 1), [])
            for i in min(spare, key=len, default=()):
                parts[i] = part
    named = (from_document[i] for i, part in enumerate(parts) if part != "train") if by_document else ()
    return Split(tuple(parts), frozenset().union(*named), by_document, linked)


def _halves(groups: Sequence[list[int]]) -> tuple[str, ...]:
    """Return the parts of pairs in groups: the first groups, about half of the pairs, are dev, the others the test."""
    part_of: dict[int, str] = {}
    total = sum(map(len, groups))
    for group in groups:
        part = "dev" if len(part_of) + len(group) / 2 < total / 2 else "test"
        part_of |= dict.fromkeys(group, part)
    return tuple(part_of[i] for i in range(total))


def answer_classes(pairs: Sequence[QA]) -> Counter[str]:
    """Return the number of pairs of each short answer that `CLASS_SIZE` pairs or more have, such as `yes` and `no`."""
    counts = Counter(text_key(pair.answer) for pair in pairs if not identifies(pair.answer))
    return Counter({answer: count for answer, count in counts.most_common() if count >= CLASS_SIZE})


def _in_proportion(pairs: Sequence[QA], groups: Sequence[list[int]], *, seed: int) -> list[list[int]]:
    """Return groups in random order, with the classes of answers in about the same proportion in each part of it."""
    order = list(groups)
    random.Random(seed).shuffle(order)
    classes = answer_classes(pairs)
    by_class: dict[str, list[list[int]]] = defaultdict(list)
    for group in order:
        answer = text_key(pairs[group[0]].answer)
        by_class[answer if answer in classes else ""].append(group)
    spread = [((i + 0.5) / len(several), group) for several in by_class.values() for i, group in enumerate(several)]
    return [group for _, group in sorted(spread, key=lambda entry: entry[0])]


def find_documents(pairs: Sequence[QA], documents: Sequence[Document]) -> list[frozenset[str]]:
    """Return the ids of each pair's documents: named by its `source`, or holding its question or its answer.

    A source is a path, a name, a title or an id. Questions are found by `QuestionFinder`; one in more than
    `MAX_DOCUMENTS` is ignored. An answer of `IDENTIFYING_WORDS` or more is searched word by word; a document that is
    part of an answer counts too.
    """
    by_name: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        path = PurePosixPath(document.id.partition("#")[0])
        inner = document.id.partition("#")[2]
        for name in {document.id, inner, document.title} | ({str(path), path.name, path.stem} if not inner else set()):
            by_name[name].add(document.id)
    questions, answers = (
        QuestionFinder(pair.question for pair in pairs),
        TextFinder((p.answer for p in pairs), least=IDENTIFYING_WORDS),
    )
    inside = TextFinder((document.content for document in documents), least=IDENTIFYING_WORDS)
    asking: dict[str, set[str]] = defaultdict(set)
    answering: dict[str, set[str]] = defaultdict(set)
    same: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        same[text_key(document.content)].add(document.id)
        for question in questions(document.content):
            asking[question].add(document.id)
        for answer in answers(document.content):
            answering[answer].add(document.id)
    documents_of_pairs = []
    for pair in pairs:
        with_question = asking[text_key(pair.question)]
        names = by_name.get(pair.source, set()) if pair.source else set()
        names = (
            names | answering[text_key(pair.answer)] | (with_question if len(with_question) <= MAX_DOCUMENTS else set())
        )
        documents_of_pairs.append(frozenset(names.union(*(same[part] for part in inside(pair.answer)))))
    return documents_of_pairs


def connected(pairs: Sequence[QA], from_document: Sequence[Iterable[str]] | None = None) -> list[list[int]]:
    """Return groups of pairs that share no question, long answer or, if given, document; each group in order."""
    parent = list(range(len(pairs)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first_pair: dict[tuple[str, str], int] = {}
    for i, pair in enumerate(pairs):
        keys = [("question", text_key(pair.question))]
        keys += [("answer", text_key(pair.answer))] if identifies(pair.answer) else []
        if from_document is not None:
            keys += [("document", name) for name in from_document[i]]
            keys += [("source", pair.source)] if pair.source and not from_document[i] else []
        for shared in keys:
            parent[root(i)] = root(first_pair.setdefault(shared, i))
    groups: dict[int, list[int]] = defaultdict(list)
    for i in range(len(pairs)):
        groups[root(i)].append(i)
    return list(groups.values())


def without_duplicates(pairs: Sequence[QA]) -> list[QA]:
    """Return the pairs without repetitions, ignoring case and white space."""
    unique: dict[tuple[str, str], QA] = {}
    for pair in pairs:
        unique.setdefault((normalised(pair.question), normalised(pair.answer)), pair)
    return list(unique.values())


def split_documents(
    parts: Mapping[str, Sequence[Document]], able: Callable[[Document], bool], *, share: float, seed: int
) -> tuple[Split, list[Document]]:
    """Hold out a share of the passages that can have questions: whole documents, and the end of each long one.

    A document is long if it has more than `LARGEST` times that share.

    Args:
        parts: the passages of each document, by its id.
        able: whether a passage can have questions.
        share: share of the passages.
        seed: random seed.

    Returns:
        The held-out documents, and the passages that are held out, those of long documents too.
    """
    positions = {name: [i for i, p in enumerate(passages) if able(p)] for name, passages in parts.items()}
    sizes = {name: len(able_ones) for name, able_ones in positions.items() if able_ones}
    largest = max(1, LARGEST * share * sum(sizes.values()))
    short = [name for name, size in sizes.items() if size <= largest]
    wanted, count, held = share * sum(sizes[name] for name in short), 0, set()
    for name in random.Random(seed).sample(short, len(short)):
        if count < wanted and count + sizes[name] <= max(1, LARGEST * wanted):
            held.add(name)
            count += sizes[name]
    ends = {name: round(share * size) for name, size in sizes.items() if size > largest}
    first = {name: positions[name][-number] for name, number in ends.items() if number} | dict.fromkeys(held, 0)
    passages = [passage for name, several in parts.items() if name in first for passage in several[first[name] :]]
    return Split((), frozenset(held), not ends, 0), passages


def dev_and_test(pairs: Sequence[QA], *, by_document: bool, seed: int) -> tuple[str, ...]:
    """Return the parts of pairs made of held-out passages, in random order: half of them dev, the others the test.

    Pairs with the same question or answer stay together, and so do those of a document, unless one has most of them.
    """
    groups = connected(pairs, [{(pair.source or "").rpartition("/")[0]} for pair in pairs]) if by_document else []
    if not groups or max(map(len, groups)) > len(pairs) / 2:
        groups = connected(pairs)
    random.Random(seed).shuffle(groups)
    return _halves(groups)


class FirstSentences:
    """`cloze_pair` of passages: what replaces questions where no model writes them."""

    public = None

    @staticmethod
    def can_ask(passage: Document) -> bool:
        """Return whether a passage has a first sentence and others, long enough."""
        return cloze_pair(passage) is not None

    def __call__(self, passages: Iterable[Document], *, held_out: bool = False) -> list[QA]:
        """Return the pairs of all passages that have one."""
        return [pair for pair in map(cloze_pair, passages) if pair]


def cloze_pair(passage: Document) -> QA | None:
    """Return a passage's first sentence as a question and the rest as its answer; None if the passage is too short.

    The inverse cloze task (Lee et al., 2019), with the first instead of a random sentence.
    """
    sentences = split_sentences(passage.text)
    rest = " ".join(sentences[1:])
    if len(sentences) < 2 or len(words(sentences[0])) < 4 or len(words(rest)) < 8:
        return None
    return QA(sentences[0], rest, source=passage.id)


def without_common_questions(pairs: Iterable[QA], passages: Sequence[Document]) -> list[QA]:
    """Return the pairs whose question is in at most `MAX_DOCUMENTS` of the passages; a phrase is no useful question."""
    candidates = list(pairs)
    find = TextFinder((pair.question for pair in candidates), least=1)
    counts = Counter(name for passage in passages for name in find(passage.content))
    return [pair for pair in candidates if counts[text_key(pair.question)] <= MAX_DOCUMENTS]
