"""The data of a domain run: what is trained on, and what is judged on, as files."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.data.documents import Document
from embrew.data.folder import document_files, passages, read_folder
from embrew.data.overlap import normalised
from embrew.data.qa import QA, read_qa
from embrew.data.reading import expand, public_name
from embrew.data.sentences import split_sentences
from embrew.domain.split import TEST_SHARE, Split, split_pairs, without_duplicates
from embrew.provenance import content_hash
from embrew.writing import atomic_folder, write_json, write_jsonl

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
SELF_SUPERVISED_BELOW = 64  # training pairs (a batch) below which sentences of the passages join them
MOST_MADE = 5000  # pairs made of passages
MOST_QUERIES = 200  # made questions that are judged on
ALIKE = 30  # characters from which on one text in another is no chance


@dataclass(frozen=True)
class Prepared:
    """The files of a prepared folder, and what its manifest says."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def passages(self) -> Path:
        """Passages to learn from: `text`, `document`."""
        return self.folder / "passages.jsonl"

    @property
    def pairs(self) -> Path:
        """Pairs to train on: `query`, `positive`, `negatives`, `made` (of a passage, not given by the user)."""
        return self.folder / "pairs.jsonl"

    @property
    def test(self) -> Path:
        """Held-out questions over answers and passages, a BEIR folder."""
        return self.folder / "test"

    @property
    def dev(self) -> Path | None:
        """Likewise, for choices made on the way; None where there are too few pairs."""
        return self.folder / "dev" if (self.folder / "dev").exists() else None

    def count(self, what: str) -> int:
        """A count of the manifest."""
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
    """Read, split and write the data into `folder`, or open it where it is there already.

    Args:
        documents: a folder of documents.
        pairs: questions and answers, see `read_qa`; None: there are none.
        folder: where to.
        columns: of `pairs`.
        max_chars: of a passage.
        max_documents: most texts that are searched in a test or dev set, the right ones included.
        seed: of the split and of samples.

    Raises:
        FileExistsError: `folder` was made of other files or with other settings.
        FileNotFoundError, ValueError: as `read_folder` and `read_qa`; nothing to train on or to judge on.
    """
    asked = {
        "documents": public_name(documents)[0],
        "pairs": None if pairs is None else public_name(pairs)[0],
        "columns": dict(columns or {}),
        "max_chars": max_chars,
        "max_documents": max_documents,
        "seed": seed,
        "sha256": _sha256(documents, pairs),
    }
    if (folder / MANIFEST).is_file():
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
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
        logger.info("%d of %d pairs stand there twice and are left out", len(given) - len(different), len(given))
    parts = {document.id: passages(document, max_chars=max_chars) for document in found}
    made = not different
    split = split_pairs(different, found, seed=seed) if different else _split_documents(found, parts, seed=seed)
    held_out = split.held_out
    train_passages = [p for name, several in parts.items() if name not in held_out for p in several]
    by_part = {name: [p for p, part in zip(different, split.parts, strict=True) if part == name] for name in _PARTS}
    if different and not split.by_document:
        held = {normalised(pair.answer): pair.answer for pair in (*by_part["dev"], *by_part["test"])}
        train_passages = [p for p in train_passages if not _alike(normalised(p.text), held)]
    if made:
        inside = {p.id for p in _last_passages(found, parts)} if not held_out else set()
        train_passages = [p for p in train_passages if p.id not in inside]
        judged = [
            p for several in parts.values() for p in several if p.id in inside or p.id.rpartition("/")[0] in held_out
        ]
        by_part["test"] = _sample([qa for qa in map(_made, judged) if qa], MOST_QUERIES, seed)
    rows = [_row(pair, made=False) for pair in by_part["train"]]
    if len(rows) < SELF_SUPERVISED_BELOW:
        own = _sample([qa for qa in map(_made, train_passages) if qa], MOST_MADE, seed)
        rows += [_row(pair, made=True) for pair in own]
    if not by_part["test"]:
        raise ValueError(
            f"{asked['documents']}: nothing can be held out to judge the result on; give more documents, or pairs"
        )
    if not train_passages and not rows:
        raise ValueError(
            f"{asked['documents']}: nothing is left to train on, since every document is one that held-out pairs are "
            "from; give more documents, or more pairs"
        )
    with atomic_folder(folder, marker=MANIFEST) as new:
        write_jsonl(new / "passages.jsonl", ({"text": p.content, "document": p.id} for p in train_passages))
        write_jsonl(new / "pairs.jsonl", rows)
        counts: dict[str, Any] = {
            "documents": len(found),
            "passages": sum(map(len, parts.values())),
            "documents_held_out": len(held_out),
            "train_passages": len(train_passages),
            "pairs": len(different),
            "train_pairs": len(by_part["train"]),
            "made_pairs": sum(row["made"] for row in rows),
            "with_negatives": sum(bool(pair.negatives) for pair in different),
            "linked": split.linked,
        }
        everything = [p for several in parts.values() for p in several]
        seen = {p.id for p in train_passages}
        for part in ("test", "dev"):
            if by_part[part]:
                written = _write_beir(new / part, part, by_part[part], different, everything, seen, max_documents, seed)
                counts |= {f"{part}_{key}": value for key, value in written.items()}
        manifest = {
            "made_of": asked,
            "counts": counts,
            "by_document": split.by_document,
            "questions_made": made,
        }
        write_json(new / MANIFEST, manifest)
    return Prepared(folder, manifest)


_PARTS = ("train", "dev", "test")


def _split_documents(documents: Sequence[Document], parts: Mapping[str, Sequence[Document]], *, seed: int) -> Split:
    """A fifth of the documents held out, of at least two; none of a single one, whose last passages are."""
    names = [document.id for document in documents if parts[document.id]]
    if len(names) < 2:
        return Split((), frozenset(), False, 0)
    chosen = random.Random(seed).sample(names, max(1, round(TEST_SHARE * len(names))))
    return Split((), frozenset(chosen), True, 0)


def _last_passages(documents: Sequence[Document], parts: Mapping[str, Sequence[Document]]) -> list[Document]:
    """The last fifth of a document's passages."""
    several = [passage for document in documents for passage in parts[document.id]]
    return list(several[len(several) - round(TEST_SHARE * len(several)) :])


def _made(passage: Document) -> QA | None:
    """A passage's first sentence as a question, and the rest of it as its answer; None where there is too little.

    The inverse cloze task (Lee et al., 2019), with the first sentence for a random one.
    """
    sentences = split_sentences(passage.text)
    rest = " ".join(sentences[1:])
    if len(sentences) < 2 or len(sentences[0].split()) < 4 or len(rest.split()) < 8:
        return None
    return QA(sentences[0], rest, source=passage.id)


def _row(pair: QA, *, made: bool) -> dict[str, Any]:
    return {"query": pair.question, "positive": pair.answer, "negatives": list(pair.negatives), "made": made}


def _sample(items: list[QA], most: int, seed: int) -> list[QA]:
    if len(items) <= most:
        return items
    return [items[i] for i in sorted(random.Random(seed).sample(range(len(items)), most))]


def _write_beir(
    folder: Path,
    split: str,
    judged: Sequence[QA],
    pairs: Sequence[QA],
    texts: Sequence[Document],
    seen: set[str],
    max_documents: int,
    seed: int,
) -> dict[str, int]:
    """Questions over their answers, their wrong choices, the other pairs' answers and the passages.

    A passage that holds a right answer, or stands in one, is left out: it would be right, and count as wrong.
    """
    right = {normalised(pair.answer): pair.answer for pair in judged}
    wrong = {normalised(text): text for pair in judged for text in pair.negatives}
    others = {normalised(pair.answer): pair.answer for pair in pairs}
    trained = {normalised(pair.answer) for pair in pairs} - set(right)
    for passage in texts:
        others[normalised(passage.content)] = passage.content
        if passage.id in seen:
            trained.add(normalised(passage.content))
    chosen = {key: text for key, text in wrong.items() if key not in right}
    pool = sorted(key for key in others if key not in right and key not in chosen and not _alike(key, right))
    room = max(max_documents - len(right) - len(chosen), 0)
    if len(pool) > room:
        pool = random.Random(seed).sample(pool, room)
    corpus = {**right, **chosen, **{key: others[key] for key in sorted(pool)}}
    ids = {key: f"d{i}" for i, key in enumerate(corpus)}
    questions: dict[str, tuple[str, set[str]]] = {}
    for pair in judged:
        questions.setdefault(normalised(pair.question), (pair.question, set()))[1].add(normalised(pair.answer))
    write_jsonl(folder / "corpus.jsonl", ({"_id": ids[key], "title": "", "text": text} for key, text in corpus.items()))
    named = [(f"q{i}", text, answers) for i, (text, answers) in enumerate(questions.values())]
    write_jsonl(folder / "queries.jsonl", ({"_id": name, "text": text} for name, text, _ in named))
    (folder / "qrels").mkdir()
    lines = [f"{name}\t{ids[key]}\t1" for name, _, answers in named for key in sorted(answers)]
    (folder / "qrels" / f"{split}.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", encoding="utf-8"
    )
    return {"queries": len(named), "documents": len(corpus), "trained_distractors": len(trained & set(corpus))}


def _alike(text: str, answers: Mapping[str, str]) -> bool:
    """Whether a text holds a right answer, or stands in one; short texts stand anywhere, and say nothing."""
    return any(
        (len(answer) >= ALIKE and answer in text) or (len(text) >= ALIKE and text in answer) for answer in answers
    )


def _sha256(documents: str | Path, pairs: str | Path | None) -> str:
    """Of the names and bytes of all files."""
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
