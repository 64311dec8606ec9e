"""The data of an adaptation as files: training passages and pairs, test and dev sets as BEIR folders."""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, cast

from embrew.adapting.defaults import Defaults
from embrew.adapting.preparation.leaks import CleanData, check_leaks, read_prepared_rows, without_held_out
from embrew.adapting.preparation.matching import PartMatcher, TextFinder, is_long, items, text_key
from embrew.adapting.preparation.sources import (
    DataSource,
    document_files,
    documents_of_source,
    read_pairs,
    split_into_passages,
)
from embrew.adapting.preparation.split import (
    FirstSentences,
    Split,
    answer_classes,
    dev_and_test,
    split_documents,
    split_pairs,
    without_common_questions,
    without_duplicates,
)
from embrew.analysis.qa import QA
from embrew.data.beir import Document
from embrew.data.datasets import row_text
from embrew.data.fingerprints import normalised
from embrew.files.checksums import NAME, check_files, content_hash, write_checksums
from embrew.files.formats import ADAPTED
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_folder, write_json, write_jsonl
from embrew.ranking import sample_in_order
from embrew.settings.validation import shortened

logger = logging.getLogger(__name__)
SELF_SUPERVISED_BELOW = 64  # training pairs (a batch) below which pairs from passages are added
MAX_MADE_PAIRS = 5000  # pairs from passages
MAX_MADE_QUESTIONS = 200  # questions from passages, of dev and test each
MAX_MEASURED = 1000  # texts of each kind whose lengths are measured
LOGGED = 80  # characters of a text in the log
UNEVEN = 0.1  # difference between the shares of a class of answers in two splits from which a warning is logged


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


class QuestionMaker(Protocol):
    """What makes pairs of passages where there are no pairs, or few.

    Attributes:
        public: what a manifest holds of it; None: it is `FirstSentences`.
    """

    @property
    def public(self) -> Mapping[str, Any] | None:
        """What a manifest holds of it."""

    def can_ask(self, passage: Document) -> bool:
        """Return whether a passage can have a question."""

    def __call__(self, passages: Sequence[Document], *, held_out: bool) -> list[QA]:
        """Return pairs of passages, for training or to hold out; their sources are the ids of the passages."""


class TrainingPair(TypedDict):
    """A training pair; `made` if it is of a passage, not from the user."""

    query: str
    positive: str
    negatives: list[str]
    made: bool


class PreparedManifest(TypedDict, total=False):
    """What prepared data were made of, with which counts; `checked` says how many texts were compared for leaks."""

    made_of: dict[str, Any]
    counts: dict[str, int]
    by_document: bool
    questions_made: bool
    classes: dict[str, dict[str, int]]
    checked: dict[str, int]


@dataclass(frozen=True)
class Prepared:
    """The files of a prepared folder, and its manifest."""

    folder: Path
    manifest: PreparedManifest
    mined: Path | None = None  # the training pairs with mined negatives

    @property
    def passages(self) -> Path:
        """Training passages: `text`, `document`."""
        return self.folder / "passages.jsonl"

    @property
    def pairs(self) -> Path:
        """Training pairs: `query`, `positive`, `negatives`, `made` (True: from a passage, not from the user)."""
        return self.folder / "pairs.jsonl"

    @property
    def test(self) -> Path:
        """Held-out questions over answers and passages, a BEIR folder."""
        return self.folder / "test"

    @property
    def dev(self) -> Path:
        """Held-out questions for choices, a BEIR folder."""
        return self.folder / "dev"

    def texts(self) -> dict[str, list[str]]:
        """Return training texts of each kind, `query` and `document`, at most `MAX_MEASURED`."""
        rows, read = list(read_prepared_rows(self.pairs)), [row["text"] for row in read_prepared_rows(self.passages)]
        queries, answers = [row["query"] for row in rows], [row["positive"] for row in rows]
        by_side = {"query": queries or read, "document": [*answers, *read]}
        return {side: sample_in_order(texts, MAX_MEASURED, seed=0) for side, texts in by_side.items()}

    def count(self, name: str) -> int:
        """Return a count of the manifest."""
        return int(self.manifest["counts"][name])


def prepare_data(
    documents: DataSource | None,
    pairs: DataSource | None,
    folder: Path,
    *,
    defaults: Defaults,
    seed: int = 42,
    questions: QuestionMaker | None = None,
) -> Prepared:
    """Read, split and write the data into `folder`, or open it if it exists.

    Args:
        documents: documents; None: pairs only.
        pairs: questions and answers; None: documents only, with `questions`.
        folder: output folder.
        defaults: lengths of passages, sizes of held-out parts and of test corpora.
        seed: random seed of the split and of samples.
        questions: writes questions of passages; None: first sentences replace them.

    Raises:
        FileExistsError: `folder` was made of other files or with other settings.
        FileNotFoundError, ValueError: as `documents_of_source` and `read_pairs`; no data for training; fewer than two
            different questions or answers for dev or test; training files that hold a held-out question or answer (see
            `leaks`).
    """
    maker = questions or FirstSentences()
    settings = {**_settings(documents, pairs, defaults, seed), "questions": maker.public}
    if (earlier := _open_prepared(folder, settings)) is not None:
        return earlier
    inputs = _read(documents, pairs, max_chars=defaults.max_chars)
    split, by_part, train_passages = _split(inputs, defaults, seed, maker)
    _check_held_out(by_part, inputs, maker)
    held_pairs = [*by_part["dev"], *by_part["test"]]
    clean = without_held_out(train_passages, by_part["train"], held_pairs)
    rows = _rows(clean, held_pairs, seed, maker)
    if len(rows) < 2:
        raise ValueError(
            f"{inputs.summary}: {len(rows)} pairs are left to train on, and contrastive learning needs two or more; "
            f"give {defaults.held_out.few} pairs or more (fewer are all held out), or more documents of two or more "
            "sentences (some are held out, or hold held-out texts)"
        )
    all_passages = [passage for passages_of_one in inputs.passages.values() for passage in passages_of_one]
    counts = {
        "documents": len(inputs.documents),
        "passages": len(all_passages),
        "documents_held_out": len(split.held_out),
        "train_passages": len(clean.passages),
        "pairs": len(inputs.pairs),
        "duplicate_pairs": inputs.duplicates,
        "train_pairs": len(clean.pairs),
        **clean.counts,
        "made_pairs": sum(row["made"] for row in rows),
        "with_negatives": sum(bool(pair.negatives) for pair in clean.pairs),
        "linked": split.linked,
    }
    manifest: PreparedManifest = {
        "made_of": settings,
        "counts": counts,
        "by_document": split.by_document,
        "questions_made": not inputs.pairs,
        "classes": _classes(inputs.pairs, {**by_part, "train": clean.pairs}),
    }
    with atomic_folder(folder, marker=ADAPTED.file) as new:
        write_jsonl(new / "passages.jsonl", ({"text": p.content, "document": p.id} for p in clean.passages))
        write_jsonl(new / "pairs.jsonl", rows)
        trained = {passage.id for passage in clean.passages}
        for part, limit in defaults.max_documents.items():
            sizes = write_test_set(
                new / part, part, by_part[part], inputs.pairs, all_passages, trained, max_documents=limit, seed=seed
            )
            counts |= {f"{part}_{name}": size for name, size in sizes.items()}
        manifest["checked"] = check_leaks(new)
        write_json(new / ADAPTED.file, manifest)
        write_checksums(new)
    return Prepared(folder, manifest)


def _settings(documents: DataSource | None, pairs: DataSource | None, defaults: Defaults, seed: int) -> dict[str, Any]:
    """Return the files and settings that prepared data depend on."""
    return {
        "format": ADAPTED.number,
        "documents": None if documents is None else documents.public,
        "pairs": None if pairs is None else pairs.public,
        "max_chars": defaults.max_chars,
        "max_documents": defaults.max_documents,
        "held_out": defaults.held_out.model_dump(),
        "seed": seed,
        "sha256": _sha256(documents, pairs),
    }


def _open_prepared(folder: Path, settings: Mapping[str, Any]) -> Prepared | None:
    """Return what an earlier call has prepared from the same files and settings; None: nothing."""
    again = f"remove {folder}; the same command makes it again"
    manifest: PreparedManifest = {}
    if (folder / ADAPTED.file).is_file():
        values = read_json(folder / ADAPTED.file, keys=("made_of", "counts", "by_document"), repair=again)
        manifest = cast("PreparedManifest", values)
        with content_of(folder / ADAPTED.file, repair=again):
            ADAPTED.check(manifest["made_of"], folder / ADAPTED.file)
    verified = check_files(folder, repair=f"R{again[1:]}")  # where the manifest is missing, too
    if not manifest:
        return None
    if not verified:
        logger.warning("%s has no %s, so changes of its files are not noticed", folder, NAME)
    check_same_settings(settings, manifest["made_of"], folder)
    return Prepared(folder, manifest)


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """What the user's files hold.

    Attributes:
        pairs: different pairs.
        duplicates: number of pairs that repeat one of them.
        documents: documents.
        passages: passages of each document, by its id.
        summary: counts and names of the files, for errors and the log.
    """

    pairs: list[QA]
    duplicates: int
    documents: list[Document]
    passages: Mapping[str, list[Document]]
    summary: str


def _read(documents: DataSource | None, pairs: DataSource | None, *, max_chars: int) -> _Inputs:
    """Read pairs and documents, and log how many there are and the first pair."""
    all_pairs = [] if pairs is None else read_pairs(pairs)
    all_documents = [] if documents is None else documents_of_source(documents)
    unique = without_duplicates(all_pairs)
    by_document = {document.id: split_into_passages(document, max_chars=max_chars) for document in all_documents}
    summary = [] if pairs is None else [f"{len(unique)} different pairs in {pairs.name}"]
    if documents is not None:
        total = sum(map(len, by_document.values()))
        numbers = len(all_documents), total
        counts = (f"{n} {what}{'s' * (n != 1)}" for n, what in zip(numbers, ("document", "passage"), strict=True))
        summary.append(f" in {documents.name}, ".join(counts))
    logger.info("read %s", ", ".join(summary))
    if unique:
        first = {"query": unique[0].question, "positive": unique[0].answer}
        logger.info("    %s", row_text({name: shortened(text, LOGGED) for name, text in first.items()}))
    return _Inputs(
        pairs=unique,
        duplicates=len(all_pairs) - len(unique),
        documents=all_documents,
        passages=by_document,
        summary=", ".join(summary),
    )


def check_same_settings(settings: Mapping[str, Any], earlier: Mapping[str, Any], folder: Path) -> None:
    """Raise FileExistsError if an earlier call made a folder with other settings."""
    differing = sorted(key for key in settings if earlier.get(key) != settings[key])
    if differing:
        raise FileExistsError(
            f"{folder} was made of other files or settings ({', '.join(differing)}); choose another output folder, or "
            "give the same command"
        )


def _rows(clean: CleanData, held_pairs: Sequence[QA], seed: int, maker: QuestionMaker) -> list[TrainingPair]:
    """Return the rows to train on; pairs of passages are added where there are few."""
    rows = [_row(pair, from_passage=False) for pair in clean.pairs]
    if len(rows) < SELF_SUPERVISED_BELOW:
        from_passages = maker(clean.passages, held_out=False)
        from_passages = without_held_out((), from_passages, held_pairs).pairs
        rows += [_row(pair, from_passage=True) for pair in sample_in_order(from_passages, MAX_MADE_PAIRS, seed=seed)]
    elif maker.public is not None:
        logger.info("no questions are written: there are %d pairs to train on", len(rows))
    return rows


def _split(
    inputs: _Inputs, defaults: Defaults, seed: int, maker: QuestionMaker
) -> tuple[Split, dict[str, list[QA]], list[Document]]:
    """Hold out pairs; without pairs, those made of held-out passages: half of them are dev.

    Returns:
        The split, the pairs of each part, and the passages to train on.
    """
    if inputs.pairs:
        split = split_pairs(inputs.pairs, inputs.documents, defaults.held_out, seed=seed)
        held = [p for document in split.held_out for p in inputs.passages[document]]
    else:
        split, held = split_documents(inputs.passages, maker.can_ask, share=defaults.held_out.test, seed=seed)
    held_ids = {passage.id for passage in held}
    to_train = [p for passages in inputs.passages.values() for p in passages if p.id not in held_ids]
    pairs, parts, most = inputs.pairs, split.parts, len(inputs.pairs)
    if not pairs:
        pairs = without_duplicates(without_common_questions(maker(held, held_out=True), to_train))
        parts, most = dev_and_test(pairs, by_document=split.by_document, seed=seed), MAX_MADE_QUESTIONS
    by_part = {
        name: sample_in_order([pairs[i] for i, part in enumerate(parts) if part == name], most, seed=seed)
        for name in _PARTS
    }
    return split, by_part, to_train


_PARTS = ("train", "dev", "test")


def _check_held_out(by_part: Mapping[str, Sequence[QA]], inputs: _Inputs, maker: QuestionMaker) -> None:
    """Raise if questions of dev or test cannot be compared with answers of others."""
    for part in ("dev", "test"):
        questions = {text_key(pair.question) for pair in by_part[part]}
        answers = {text_key(pair.answer) for pair in by_part[part]}
        if min(len(questions), len(answers)) >= 2:
            continue
        able = sum(maker.can_ask(passage) for passages in inputs.passages.values() for passage in passages)
        if inputs.pairs:
            advice = (
                "pairs with the same question or document stay together; give more pairs with different answers, or "
                "longer documents"
            )
        elif maker.public is None:
            advice = (
                f"{able} passages begin with a sentence that others follow, and a fifth of them is held out; give "
                "documents with 20 or more such passages, a model that writes questions (--writer), or pairs"
            )
        else:
            advice = (
                f"{able} passages are long enough to be asked about, and a fifth of them is held out; give more "
                "documents or pairs, or, if most questions were rejected, a larger writer"
            )
        raise ValueError(
            f"{inputs.summary}: the {part} set would have {len(questions)} different questions and {len(answers)} "
            f"different answers, and needs two or more of each: {advice}"
        )


def _classes(pairs: Sequence[QA], by_part: Mapping[str, Sequence[QA]]) -> dict[str, dict[str, int]]:
    """Return the number of pairs per class of answers and split; warn where the shares differ much between splits."""
    counts = {part: Counter(text_key(pair.answer) for pair in by_part[part]) for part in _PARTS if by_part[part]}
    classes = {name: {part: counts[part][name] for part in counts} for name in answer_classes(pairs)}
    for name, by_split in classes.items():
        shares = {part: count / len(by_part[part]) for part, count in by_split.items()}
        if max(shares.values()) - min(shares.values()) > UNEVEN:
            text = ", ".join(f"{share:.0%} of {part}" for part, share in shares.items())
            logger.warning(
                "the answer %r is unevenly divided: %s; its pairs are linked by question or document", name, text
            )
    return classes


def _row(pair: QA, *, from_passage: bool) -> TrainingPair:
    return {"query": pair.question, "positive": pair.answer, "negatives": list(pair.negatives), "made": from_passage}


def _sha256(documents: DataSource | None, pairs: DataSource | None) -> str:
    """Return the sha256 of the names and bytes of all files; data sets of the Hub have none here."""
    digest = hashlib.sha256()
    if documents is not None and (path := documents.path) is not None:
        for file in document_files(path):
            digest.update(str(file.relative_to(path) if path.is_dir() else file.name).encode())
            digest.update(content_hash([file]).encode())
    if pairs is not None and (path := pairs.path) is not None:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        digest.update(content_hash(files).encode())
    return digest.hexdigest()
