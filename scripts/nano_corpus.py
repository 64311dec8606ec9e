"""The text nano is trained on: which sources, what is taken out, and what was counted.

Only text whose licence permits weights under the Apache licence is read. Lines that occur twice are kept once; lines of
the validation sets and sentences of test sets are removed and counted. The text itself is never written anywhere.
"""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from docstrings import HELD_OUT, Package, documented, installed_packages, raw_text, source_files

from embrew.data.beir import read_beir
from embrew.data.formats import read_file
from embrew.data.reading import data_files, is_beir, qrels_files, split_files, splits

logger = logging.getLogger(__name__)

LICENCES = {
    "wikipedia": "CC BY-SA 3.0",
    "wiki_paragraphs": "CC BY-SA 3.0",
    "wikinews": "CC BY 2.5",
    "novels": "public domain",
    "tatoeba": "CC BY 2.0",
    "nltk_inaugural": "public domain",
    "nltk_state_union": "public domain",
}
DOCSTRINGS = "docstrings"
_PERMISSIVE = re.compile(r"MIT|BSD|Apache|PSF|Python Software Foundation|ISC|HPND|Unlicense|0BSD|CC0|Zlib", re.I)
_RESTRICTED = re.compile(r"GPL|General Public|NVIDIA|Proprietary|Commercial|Creative Commons.*NonCommercial", re.I)
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[A-Z0-9])")
_MIN_LINE = 60  # characters from which a repeated line is a copy rather than a heading or a phrase


@dataclass
class Counts:
    """What was read, kept and removed."""

    documents: Counter[str] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)
    repeated_lines: int = 0
    validation_lines: int = 0
    test_sentences: int = 0  # of STS and retrieval test sets
    demo_sentences: int = 0  # of packages the demo holds out
    packages: dict[str, str] = field(default_factory=dict)  # name: licence
    packages_left_out: dict[str, str] = field(default_factory=dict)


def read_corpus(data: Path, counts: Counts, *, packages: list[Package] | None = None) -> Iterator[tuple[str, str]]:
    """Sources and documents of what is permitted, cleaned; `counts` is filled on the way.

    Args:
        data: The folder with `lm_corpus`, `wiki_paragraphs` and the test sets.
        packages: Packages whose docstrings are read; default: all installed ones with a permissive licence.
    """
    packages = installed_packages() if packages is None else packages
    held_out = [package for package in packages if package.name in HELD_OUT]
    tested = _keys(test_texts(data))
    demo = _keys(text for package in held_out for text in docstrings(package)) - tested
    validation = {_hash(line) for text in validation_texts(data) for line in text.split("\n")}
    seen: set[bytes] = set()
    for source, text in _sources(data, packages, counts):
        lines = []
        for line in text.split("\n"):
            if len(line) >= _MIN_LINE:
                digest = _hash(line)
                if digest in validation:
                    counts.validation_lines += 1
                    continue
                if digest in seen:
                    counts.repeated_lines += 1
                    continue
                seen.add(digest)
            sentences = _SENTENCE.split(line)
            keys = [key(sentence) for sentence in sentences]
            kept = [sentence for sentence, k in zip(sentences, keys, strict=True) if k not in tested and k not in demo]
            counts.test_sentences += sum(k in tested for k in keys)
            counts.demo_sentences += sum(k in demo for k in keys)
            if kept:
                lines.append(line if len(kept) == len(sentences) else " ".join(kept))
        cleaned = "\n".join(lines).strip()
        if len(cleaned) >= _MIN_LINE:
            counts.documents[source] += 1
            counts.characters[source] += len(cleaned)
            yield source, cleaned


def test_texts(data: Path) -> Iterator[str]:
    """Sentences of the STS test and dev sets below `data`, queries and relevant documents of the retrieval ones."""
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        if is_beir(folder):
            for split in set(qrels_files(folder)) - {"train"}:
                retrieval = read_beir(folder, split)
                relevant = {
                    document for grades in retrieval.qrels.values() for document, grade in grades.items() if grade
                }
                yield from retrieval.queries.values()
                yield from (document.content for document in retrieval.corpus if document.id in relevant)
            continue
        for split in set(splits(folder)) - {"train"}:
            for file in split_files(folder, split):
                for record in read_file(file):
                    if not {"sentence1", "sentence2", "score"} <= set(record.values):
                        break
                    yield record.values["sentence1"]
                    yield record.values["sentence2"]


def validation_texts(data: Path, *names: str) -> Iterator[str]:
    """Documents of the validation sets."""
    for name in names or ("lm_corpus", "wiki_paragraphs"):
        for file in split_files(data / name, "valid"):
            yield from (record.values["text"] for record in read_file(file))


def docstrings(package: Package) -> Iterator[str]:
    """Signature and documentation of the public names of a package; files that do not parse are passed over."""
    for file, module in sorted(source_files(package.path)):
        try:
            yield from (raw_text(entry) for entry in documented(file, module))
        except (SyntaxError, ValueError, RecursionError):
            continue


def licence(package: Package) -> str:
    """The licence an installed package states; the standard library's is Python's own."""
    names = metadata.packages_distributions().get(package.name)
    if not names:
        return "PSF-2.0"
    stated = metadata.metadata(min(names))
    classifiers = [value.split(" :: ")[-1] for value in stated.get_all("Classifier", []) if value.startswith("License")]
    first_line = (stated.get("License") or "").strip().split("\n")[0][:60]
    return stated.get("License-Expression") or " / ".join(classifiers) or first_line or "none stated"


def key(sentence: str) -> str:
    """A sentence as it is compared: lower case, letters and digits only; empty if too short to be one."""
    words = re.findall(r"[a-z0-9]+", sentence.lower())
    joined = " ".join(words)
    return joined if len(words) >= 3 and len(joined) >= 12 else ""


def _sources(data: Path, packages: Iterable[Package], counts: Counts) -> Iterator[tuple[str, str]]:
    for file in split_files(data / "lm_corpus", "train"):
        for record in read_file(file):
            if record.values["source"] in LICENCES:
                yield record.values["source"], record.values["text"]
    for file in split_files(data / "wiki_paragraphs", "train"):
        yield from (("wiki_paragraphs", record.values["text"]) for record in read_file(file))
    for package in packages:
        stated = licence(package)
        if package.name in HELD_OUT:
            counts.packages_left_out[package.name] = "held out: the demo searches in it, or settings were chosen on it"
        elif _RESTRICTED.search(stated) or not _PERMISSIVE.search(stated):
            counts.packages_left_out[package.name] = stated
        else:
            counts.packages[package.name] = stated
            yield from ((DOCSTRINGS, text) for text in docstrings(package))


def _keys(texts: Iterable[str]) -> set[str]:
    """What must not occur: each text whole, and each of its sentences."""
    keys: set[str] = set()
    for text in texts:
        keys.add(key(text))
        keys.update(key(sentence) for line in text.split("\n") for sentence in _SENTENCE.split(line))
    return keys - {""}


def _hash(line: str) -> bytes:
    return hashlib.blake2b(line.strip().encode(), digest_size=12).digest()


def data_hashes(data: Path) -> dict[str, Any]:
    """SHA-256 of the files the corpus is read from."""
    files = [file for name in ("lm_corpus", "wiki_paragraphs") for file in data_files(data / name)]
    hashes = {}
    for file in files:
        with file.open("rb") as handle:
            hashes[f"{file.parent.name}/{file.name}"] = hashlib.file_digest(handle, "sha256").hexdigest()
    return hashes
