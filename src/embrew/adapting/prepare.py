"""The data of an adaptation as files: training passages and pairs, test and dev sets."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.adapting.cloze_questions import cloze_pair, last_passages, split_documents, without_repeated
from embrew.adapting.defaults import Defaults
from embrew.adapting.folder import document_files, passages
from embrew.adapting.leaks import Clean, check, without_held_out
from embrew.adapting.matching import key
from embrew.adapting.reading import Given, read_documents, read_pairs
from embrew.adapting.split import Split, answer_classes, split_pairs, without_duplicates
from embrew.adapting.test_sets import write_test_set
from embrew.analysis.qa import QA
from embrew.config.suggestions import shortened
from embrew.data.beir import Document
from embrew.data.datasets import row_text
from embrew.data.formats import read_file
from embrew.files.checksums import NAME, check_files, content_hash, write_checksums
from embrew.files.formats import ADAPTED
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_folder, write_json, write_jsonl
from embrew.sampling import sample_in_order

logger = logging.getLogger(__name__)
SELF_SUPERVISED_BELOW = 64  # training pairs (a batch) below which pairs from passages are added
MOST_MADE = 5000  # pairs from passages
MOST_QUERIES = 200  # questions from passages, of dev and test each
MOST_MEASURED = 1000  # texts of each kind whose lengths are measured
SHOWN = 80  # characters of a text in the log
UNLIKE = 0.1  # difference between the shares of a class of answers in two splits from which a warning is logged


@dataclass(frozen=True)
class Prepared:
    """The files of a prepared folder, and its manifest."""

    folder: Path
    manifest: Mapping[str, Any]
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
        """Return training texts of each kind, `query` and `document`, at most `MOST_MEASURED`."""
        rows = [record.values for record in read_file(self.pairs)] if self.pairs.stat().st_size else []
        read = [record.values["text"] for record in read_file(self.passages)] if self.passages.stat().st_size else []
        queries, answers = [row["query"] for row in rows], [row["positive"] for row in rows]
        found = {"query": queries or read, "document": [*answers, *read]}
        return {side: sample_in_order(texts, MOST_MEASURED, seed=0) for side, texts in found.items()}

    def count(self, what: str) -> int:
        """Return a count of the manifest."""
        return int(self.manifest["counts"][what])


def prepare(
    documents: Given | None, pairs: Given | None, folder: Path, *, defaults: Defaults, seed: int = 42
) -> Prepared:
    """Read, split and write the data into `folder`, or open it if it exists.

    Args:
        documents: documents; None: pairs only.
        pairs: questions and answers; None: documents only, whose first sentences replace questions.
        folder: output folder.
        defaults: lengths of passages, sizes of held-out parts and of test corpora.
        seed: random seed of the split and of samples.

    Raises:
        FileExistsError: `folder` was made of other files or with other settings.
        FileNotFoundError, ValueError: as `read_documents` and `read_pairs`; no data for training; fewer than two
            different questions or answers for dev or test; training files that hold a held-out question or answer (see
            `leaks`).
    """
    asked = {
        "format": ADAPTED.number,
        "documents": None if documents is None else documents.public,
        "pairs": None if pairs is None else pairs.public,
        "max_chars": defaults.max_chars,
        "max_documents": defaults.max_documents,
        "held_out": defaults.held_out.model_dump(),
        "seed": seed,
        "sha256": _sha256(documents, pairs),
    }
    if (kept := _kept(folder, asked)) is not None:
        return kept
    given = [] if pairs is None else read_pairs(pairs)
    found = [] if documents is None else read_documents(documents)
    different = without_duplicates(given)
    of_pairs = "" if pairs is None else f"{len(different)} different pairs in {pairs.name}"
    parts = {document.id: passages(document, max_chars=defaults.max_chars) for document in found}
    of_documents = ""
    if documents is not None:
        of_documents = f"{len(found)} documents in {documents.name}, {sum(map(len, parts.values()))} passages"
    what = ", ".join(part for part in (of_pairs, of_documents) if part)
    logger.info("read %s", what)
    if different:
        first = {"query": different[0].question, "positive": different[0].answer}
        logger.info("    %s", row_text({name: shortened(text, SHOWN) for name, text in first.items()}))
    split, by_part, train_passages = _split(different, found, parts, defaults, seed)
    _check_held_out(by_part, what)
    held_pairs = [*by_part["dev"], *by_part["test"]]
    clean = without_held_out(train_passages, by_part["train"], held_pairs)
    rows = _rows(clean, held_pairs, seed)
    if len(rows) < 2:
        raise ValueError(
            f"{what}: {len(rows)} pairs are left to train on, and contrastive learning needs two or more; give "
            f"{defaults.held_out.few} pairs or more (fewer are all held out), or more documents of two or more "
            "sentences (some are held out, or hold held-out texts)"
        )
    everything = [passage for several in parts.values() for passage in several]
    counts: dict[str, Any] = {
        "documents": len(found),
        "passages": len(everything),
        "documents_held_out": len(split.held_out),
        "train_passages": len(clean.passages),
        "pairs": len(different),
        "duplicate_pairs": len(given) - len(different),
        "train_pairs": len(clean.pairs),
        **clean.counts,
        "made_pairs": sum(row["made"] for row in rows),
        "with_negatives": sum(bool(pair.negatives) for pair in clean.pairs),
        "linked": split.linked,
    }
    manifest: dict[str, Any] = {
        "made_of": asked,
        "counts": counts,
        "by_document": split.by_document,
        "questions_made": not different,
        "classes": _classes(different, {**by_part, "train": clean.pairs}),
    }
    with atomic_folder(folder, marker=ADAPTED.file) as new:
        write_jsonl(new / "passages.jsonl", ({"text": p.content, "document": p.id} for p in clean.passages))
        write_jsonl(new / "pairs.jsonl", rows)
        seen = {passage.id for passage in clean.passages}
        for part, most in defaults.max_documents.items():
            written = write_test_set(new / part, part, by_part[part], different, everything, seen, most, seed)
            counts |= {f"{part}_{key}": value for key, value in written.items()}
        manifest["checked"] = check(new)
        write_json(new / ADAPTED.file, manifest)
        write_checksums(new)
    return Prepared(folder, manifest)


def _kept(folder: Path, asked: Mapping[str, Any]) -> Prepared | None:
    """Return what an earlier call has prepared from the same files and settings; None: nothing."""
    again = f"remove {folder}; the same command makes it again"
    manifest = {}
    if (folder / ADAPTED.file).is_file():
        manifest = read_json(folder / ADAPTED.file, keys=("made_of", "counts", "by_document"), repair=again)
        with content_of(folder / ADAPTED.file, repair=again):
            ADAPTED.check(manifest["made_of"], folder / ADAPTED.file)
    verified = check_files(folder, repair=f"R{again[1:]}")  # where the manifest is missing, too
    if not manifest:
        return None
    if not verified:
        logger.warning("%s has no %s, so changes of its files are not noticed", folder, NAME)
    check_same(asked, manifest["made_of"], folder)
    return Prepared(folder, manifest)


def check_same(asked: Mapping[str, Any], before: Mapping[str, Any], folder: Path) -> None:
    """Raise FileExistsError if a folder was made with other settings than are asked for."""
    differing = sorted(key for key in asked if before.get(key) != asked[key])
    if differing:
        raise FileExistsError(
            f"{folder} was made of other files or settings ({', '.join(differing)}); choose another output folder, or "
            "give the same command"
        )


def _rows(clean: Clean, held_pairs: Sequence[QA], seed: int) -> list[dict[str, Any]]:
    """Return the rows to train on; pairs of passages are added where there are few."""
    rows = [_row(pair, made=False) for pair in clean.pairs]
    if len(rows) < SELF_SUPERVISED_BELOW:
        own = without_held_out((), (qa for qa in map(cloze_pair, clean.passages) if qa), held_pairs).pairs
        rows += [_row(pair, made=True) for pair in sample_in_order(own, MOST_MADE, seed=seed)]
    return rows


def _split(
    pairs: Sequence[QA],
    documents: Sequence[Document],
    parts: Mapping[str, list[Document]],
    defaults: Defaults,
    seed: int,
) -> tuple[Split, dict[str, list[QA]], list[Document]]:
    """Hold out pairs; without pairs, first sentences of held-out passages: the first half of them is dev.

    Returns:
        The split, the pairs of each part, and the passages to train on.
    """
    if pairs:
        split = split_pairs(pairs, documents, defaults.held_out, seed=seed)
        by_part = {name: [p for p, part in zip(pairs, split.parts, strict=True) if part == name] for name in _PARTS}
    else:
        split = split_documents(documents, parts, share=defaults.held_out.test, seed=seed)
        by_part = dict[str, list[QA]]({name: [] for name in _PARTS})
    held = split.held_out
    to_train = [p for name, several in parts.items() if name not in held for p in several]
    if not pairs:
        inside = {p.id for p in last_passages(documents, parts, share=defaults.held_out.test)} if not held else set()
        to_train = [p for p in to_train if p.id not in inside]
        apart = [p for name, several in parts.items() for p in several if p.id in inside or name in held]
        questions = without_repeated((qa for qa in map(cloze_pair, apart) if qa), to_train)
        for part, half in (("dev", questions[: len(questions) // 2]), ("test", questions[len(questions) // 2 :])):
            by_part[part] = sample_in_order(half, MOST_QUERIES, seed=seed)
    return split, by_part, to_train


_PARTS = ("train", "dev", "test")


def _check_held_out(by_part: Mapping[str, Sequence[QA]], given: str) -> None:
    """Raise if questions of dev or test cannot be compared with answers of others."""
    for part in ("dev", "test"):
        questions = {key(pair.question) for pair in by_part[part]}
        answers = {key(pair.answer) for pair in by_part[part]}
        if min(len(questions), len(answers)) < 2:
            raise ValueError(
                f"{given}: the {part} set would have {len(questions)} different questions and {len(answers)} different "
                "answers, and needs two or more of each (pairs with the same question or document stay together); give "
                "more pairs with different answers, or longer documents"
            )


def _classes(pairs: Sequence[QA], by_part: Mapping[str, Sequence[QA]]) -> dict[str, dict[str, int]]:
    """Return the number of pairs per class of answers and split; warn where the shares differ much between splits."""
    counts = {part: Counter(key(pair.answer) for pair in by_part[part]) for part in _PARTS if by_part[part]}
    found = {name: {part: counts[part][name] for part in counts} for name in answer_classes(pairs)}
    for name, by_split in found.items():
        shares = {part: count / len(by_part[part]) for part, count in by_split.items()}
        if max(shares.values()) - min(shares.values()) > UNLIKE:
            said = ", ".join(f"{share:.0%} of {part}" for part, share in shares.items())
            logger.warning(
                "the answer %r is unevenly divided: %s; its pairs are linked by question or document", name, said
            )
    return found


def _row(pair: QA, *, made: bool) -> dict[str, Any]:
    return {"query": pair.question, "positive": pair.answer, "negatives": list(pair.negatives), "made": made}


def _sha256(documents: Given | None, pairs: Given | None) -> str:
    """Return the sha256 of the names and bytes of all files; data sets of the Hub have none here."""
    digest = hashlib.sha256()
    if documents is not None and (place := documents.place) is not None:
        for file in document_files(place):
            digest.update(str(file.relative_to(place) if place.is_dir() else file.name).encode())
            digest.update(content_hash([file]).encode())
    if pairs is not None and (place := pairs.place) is not None:
        files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
        digest.update(content_hash(files).encode())
    return digest.hexdigest()
