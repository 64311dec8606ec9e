"""The data of a domain run as files: training passages and pairs, test and dev sets."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.analysis.qa import QA, read_qa
from embrew.data.reading import expand, public_name
from embrew.domain.cloze_questions import cloze_pair, last_passages, split_documents, without_repeated
from embrew.domain.folder import document_files, passages, read_folder
from embrew.domain.leaks import without_held_out
from embrew.domain.matching import key
from embrew.domain.scan import check
from embrew.domain.split import answer_classes, split_pairs, without_duplicates
from embrew.domain.test_sets import write_test_set
from embrew.files.checksums import content_hash
from embrew.files.formats import DOMAIN
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_folder, write_json, write_jsonl
from embrew.sampling import sample_in_order

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
SELF_SUPERVISED_BELOW = 64  # training pairs (a batch) below which pairs from passages are added
MOST_MADE = 5000  # pairs from passages
MOST_QUERIES = 200  # test questions from passages
UNLIKE = 0.1  # difference between the shares of a class of answers in two splits from which a warning is logged


@dataclass(frozen=True)
class Prepared:
    """The files of a prepared folder, and its manifest."""

    folder: Path
    manifest: Mapping[str, Any]

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
    def dev(self) -> Path | None:
        """Dev set, for choices during training; None if there are too few pairs."""
        return self.folder / "dev" if (self.folder / "dev").exists() else None

    def count(self, what: str) -> int:
        """Return a count of the manifest."""
        return int(self.manifest["counts"][what])


def prepare(
    documents: str | Path,
    pairs: str | Path | None,
    folder: Path,
    *,
    columns: Mapping[str, str] | None = None,
    max_chars: int = 600,
    max_documents: int = 2000,
    seed: int = 42,
) -> Prepared:
    """Read, split and write the data into `folder`, or open it if it exists.

    Args:
        documents: a folder of documents.
        pairs: questions and answers, see `read_qa`; None: no pairs.
        folder: output folder.
        columns: column names of `pairs`.
        max_chars: maximum characters of a passage.
        max_documents: maximum number of texts in a test or dev corpus, right answers included.
        seed: random seed of the split and of samples.

    Raises:
        FileExistsError: `folder` was made of other files or with other settings.
        FileNotFoundError, ValueError: as `read_folder` and `read_qa`; no data for training; fewer than two different
            questions or answers for the test; training files that hold a held-out question or answer (see `scan`).
    """
    asked = {
        "format": DOMAIN.number,
        "documents": public_name(documents)[0],
        "pairs": None if pairs is None else public_name(pairs)[0],
        "columns": dict(columns or {}),
        "max_chars": max_chars,
        "max_documents": max_documents,
        "seed": seed,
        "sha256": _sha256(documents, pairs),
    }
    if (folder / MANIFEST).is_file():
        again = f"remove {folder}; the same command makes it again"
        manifest = read_json(folder / MANIFEST, keys=("made_of", "counts", "by_document"), repair=again)
        with content_of(folder / MANIFEST, repair=again):
            DOMAIN.check(manifest["made_of"], folder / MANIFEST)
            differing = sorted(key for key in asked if manifest["made_of"].get(key) != asked[key])
        if differing:
            raise FileExistsError(
                f"{folder} was made of other files or settings ({', '.join(differing)}); choose another output folder"
            )
        return Prepared(folder, manifest)
    found = read_folder(documents)
    given = [] if pairs is None else read_qa(pairs, columns=columns)
    different = without_duplicates(given)
    if len(different) < len(given):
        logger.info("%d of %d pairs are duplicates and are left out", len(given) - len(different), len(given))
    parts = {document.id: passages(document, max_chars=max_chars) for document in found}
    made = not different
    split = split_pairs(different, found, seed=seed) if different else split_documents(found, parts, seed=seed)
    held_out = split.held_out
    train_passages = [p for name, several in parts.items() if name not in held_out for p in several]
    by_part = {name: [p for p, part in zip(different, split.parts, strict=True) if part == name] for name in _PARTS}
    if made:
        inside = {p.id for p in last_passages(found, parts)} if not held_out else set()
        train_passages = [p for p in train_passages if p.id not in inside]
        judged = [
            p for several in parts.values() for p in several if p.id in inside or p.id.rpartition("/")[0] in held_out
        ]
        questions = without_repeated((qa for qa in map(cloze_pair, judged) if qa), train_passages)
        by_part["test"] = sample_in_order(questions, MOST_QUERIES, seed=seed)
    of_pairs = "no pairs" if pairs is None else f"pairs in {asked['pairs']}: {len(different)}"
    _check_test(by_part["test"], f"documents in {asked['documents']}: {len(found)}, {of_pairs}")
    held_pairs = [*by_part["dev"], *by_part["test"]]
    clean = without_held_out(train_passages, by_part["train"], held_pairs)
    train_passages, taken_out = clean.passages, dict(clean.counts)
    rows = [_row(pair, made=False) for pair in clean.pairs]
    if len(rows) < SELF_SUPERVISED_BELOW:
        own = without_held_out((), (qa for qa in map(cloze_pair, train_passages) if qa), held_pairs).pairs
        rows += [_row(pair, made=True) for pair in sample_in_order(own, MOST_MADE, seed=seed)]
    if not train_passages and not rows:
        raise ValueError(
            f"{asked['documents']}: no training data is left: every document is the source of held-out pairs, or holds "
            "their questions or answers; give more documents, or more pairs"
        )
    classes = _classes(different, {**by_part, "train": clean.pairs})
    with atomic_folder(folder, marker=MANIFEST) as new:
        write_jsonl(new / "passages.jsonl", ({"text": p.content, "document": p.id} for p in train_passages))
        write_jsonl(new / "pairs.jsonl", rows)
        counts: dict[str, Any] = {
            "documents": len(found),
            "passages": sum(map(len, parts.values())),
            "documents_held_out": len(held_out),
            "train_passages": len(train_passages),
            "pairs": len(different),
            "train_pairs": len(clean.pairs),
            **taken_out,
            "made_pairs": sum(row["made"] for row in rows),
            "with_negatives": sum(bool(pair.negatives) for pair in different),
            "linked": split.linked,
        }
        everything = [p for several in parts.values() for p in several]
        seen = {p.id for p in train_passages}
        for part in ("test", "dev"):
            if by_part[part]:
                written = write_test_set(
                    new / part, part, by_part[part], different, everything, seen, max_documents, seed
                )
                counts |= {f"{part}_{key}": value for key, value in written.items()}
        manifest = {
            "made_of": asked,
            "counts": counts,
            "by_document": split.by_document,
            "questions_made": made,
            "classes": classes,
            "checked": check(new),
        }
        write_json(new / MANIFEST, manifest)
    return Prepared(folder, manifest)


_PARTS = ("train", "dev", "test")


def _check_test(pairs: Sequence[QA], given: str) -> None:
    """Raise if questions cannot be compared with answers of others."""
    questions, answers = {key(pair.question) for pair in pairs}, {key(pair.answer) for pair in pairs}
    if min(len(questions), len(answers)) < 2:
        raise ValueError(
            f"{given}; the test would have different questions: {len(questions)}, different answers: {len(answers)}, "
            "and needs two or more of each (pairs with the same question or document stay together); give more or "
            "longer documents, or more questions with different answers (--pairs FILE)"
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


def _sha256(documents: str | Path, pairs: str | Path | None) -> str:
    """Return the sha256 of the names and bytes of all files."""
    place = Path(expand(documents))
    digest = hashlib.sha256()
    for file in document_files(place):
        digest.update(str(file.relative_to(place) if place.is_dir() else file.name).encode())
        digest.update(content_hash([file]).encode())
    if pairs is not None:
        found = Path(expand(pairs))
        if not found.exists():
            raise FileNotFoundError(f"no file or folder {found}")
        files = [found] if found.is_file() else sorted(path for path in found.rglob("*") if path.is_file())
        digest.update(content_hash(files).encode())
    return digest.hexdigest()
