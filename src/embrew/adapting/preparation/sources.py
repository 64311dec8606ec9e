"""Read what an adaptation is given: pairs and documents, in the forms that training reads and in those of users.

Documents are a folder (text, Markdown, HTML, JSON Lines, PDF), and are split into passages.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embrew.analysis.qa import QA, read_as_trained, read_qa
from embrew.data.beir import Document, check_unique, documents_of
from embrew.data.datasets import load
from embrew.data.documents import PROSE, read_prose, split_sentences
from embrew.data.fingerprints import normalised
from embrew.data.formats import TABLES, read_file
from embrew.data.reading import HUB_ID, data_files, expand, find_file, is_beir, is_saved, public_name
from embrew.files.reading import CONTENT
from embrew.recipe import DataConfig
from embrew.settings.validation import check_fields
from embrew.settings.yaml_files import parse_yaml

logger = logging.getLogger(__name__)
KINDS = (".txt", *PROSE, ".pdf", ".jsonl", ".jsonl.gz")
ROWS = (".jsonl", ".jsonl.gz", ".parquet", ".arrow", *TABLES)
"""Files with a document per row; of a folder, JSON Lines only: the others are rarely documents."""
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
REFUSED_KEYS = (
    "weight",
    "ratio",
    "instruction",
    "instructions",
    "instruct",
    "max_tokens",
    "on_bad_rows",
    "max_reject_rate",
)


def document_files(folder: str | Path) -> list[Path]:
    """Return the files of documents in a folder and its subfolders, or the file itself.

    Hidden files and folders are ignored; the number of files of other kinds is logged.

    Raises:
        FileNotFoundError: there is no such folder, or no readable file in it.
        ValueError: a name that is not UTF-8.
    """
    path = Path(expand(folder))
    if not path.exists():
        raise FileNotFoundError(f"no folder {path}")
    inside = [path] if path.is_file() else sorted(candidate for candidate in path.rglob("*") if candidate.is_file())
    if is_saved(path):
        return data_files(path)
    if is_beir(path):  # its queries are no documents
        inside = [file for file in [find_file(path, "corpus")] if file]
    seen = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(path).parts)]
    for file in seen:
        if any("\udc80" <= letter <= "\udcff" for letter in str(file)):  # bytes that Python could not decode
            raise ValueError(f"{os.fsencode(file)!r}: its name is not valid UTF-8; rename it, or move it away")
    files = [
        candidate for candidate in seen if candidate.name.lower().endswith(KINDS if path.is_dir() else (*KINDS, *ROWS))
    ]
    others = Counter(candidate.suffix or candidate.name for candidate in seen if candidate not in files)
    if not files:
        has = f"; it holds {', '.join(sorted(others))} files" if others else ""
        raise FileNotFoundError(f"{path} holds no documents; expected files ending in {', '.join(KINDS)}{has}")
    if others:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
        logger.warning("%s: %d files of other kinds are left out (%s)", path, sum(others.values()), kinds)
    return files


def read_document_folder(folder: str | Path) -> list[Document]:
    """Return the documents of `document_files`: one per file, or per row with `text` (`_id`, `title`).

    Ids are paths below the folder, and numbers within files of rows. Empty documents are left out. Of
    several with the same text, up to case and white space, the first is kept.

    Raises:
        FileNotFoundError: as `document_files`.
        ValueError: a file cannot be read; a PDF has no text; no document is left.
    """
    path = Path(expand(folder))
    documents: list[Document] = []
    keys: set[str] = set()
    empty = twice = 0
    for file in document_files(path):
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        for document in _documents(file, name):
            key = normalised(document.text)
            empty += not key
            twice += bool(key) and key in keys
            if key and key not in keys:
                keys.add(key)
                documents.append(document)
    if empty:
        logger.warning("%s: %d empty documents are left out", path, empty)
    if twice:
        logger.warning("%s: %d documents have the text of another one and are left out", path, twice)
    if not documents:
        raise ValueError(f"{path}: all documents are empty; give some with text")
    check_unique(documents, path)
    return documents


def _documents(file: Path, name: str) -> Iterator[Document]:
    if file.name.lower().endswith(ROWS):
        yield from (replace(document, id=f"{name}#{document.id}") for document in documents_of(read_file(file)))
        return
    if file.suffix.lower() == ".pdf":
        yield Document(id=name, text=_pdf_text(file))
        return
    try:
        yield Document(id=name, **read_prose(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _pdf_text(file: Path) -> str:
    """Return the text layer of a PDF."""
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, FileNotDecryptedError, PyPdfError
    except ImportError:
        raise ValueError(f'{file}: PDF files need pypdf: pip install "embrew[pdf]", or move the file away') from None
    pypdf = logging.getLogger("pypdf")
    level = pypdf.level
    pypdf.setLevel(logging.ERROR)  # it warns of every defect that it can handle
    try:
        pages = PdfReader(file).pages
        text = "\n\n".join(page.extract_text() for page in pages)
    except FileNotDecryptedError:
        raise ValueError(f"{file}: needs a password; save it without one, or move it away") from None
    except (PyPdfError, DependencyError, NotImplementedError, OSError, *CONTENT) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{file}: cannot be read as PDF ({reason}); repair it, or move it away") from None
    finally:
        pypdf.setLevel(level)
    if not text.strip():
        raise ValueError(
            f"{file}: {len(pages)} pages without text, so probably scanned; run text recognition (OCR) over it, or "
            "move it away"
        )
    return re.sub(r"(\w)-\n(\w)", r"\1\2", text)  # words hyphenated at the end of a line


def split_into_passages(document: Document, *, max_chars: int = 800) -> list[Document]:
    """Split a document into passages of whole paragraphs, or of whole sentences of long ones.

    The title of a passage is the heading before it, or the document's title; its id is `DOCUMENT/NUMBER`. Only
    sentences that are too long are split, between words.

    Args:
        document: the document; Markdown headings begin a new passage.
        max_chars: maximum number of characters of a passage.
    """
    if max_chars < 50:
        raise ValueError(f"max_chars={max_chars}; a passage has 50 characters or more")
    passages: list[tuple[str, str]] = []
    for title, text in _sections(document):
        passages += [(title, part) for part in _packed(_segments(text, max_chars), max_chars)]
    return [Document(f"{document.id}/{i}", text, title) for i, (title, text) in enumerate(passages)]


def _sections(document: Document) -> Iterator[tuple[str, str]]:
    """Yield title and text between Markdown headings; headings in code blocks are ignored."""
    title, in_code = document.title, False
    lines: list[str] = []
    for line in document.text.splitlines():
        in_code ^= line.lstrip().startswith("```")
        heading = None if in_code else _HEADING.match(line)
        if heading:
            yield title, "\n".join(lines)
            title, lines = heading.group(1), []
        else:
            lines.append(line)
    yield title, "\n".join(lines)


def _segments(text: str, max_chars: int) -> Iterator[tuple[str, str]]:
    """Yield paragraphs that fit, else sentences, else groups of words; each with its separator from the one before."""
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.split())
        if len(flat) <= max_chars:
            if flat:
                yield "\n", flat
            continue
        separator = "\n"
        for sentence in split_sentences(flat):
            while len(sentence) > max_chars:
                cut = sentence.rfind(" ", 1, max_chars + 1)
                cut = max_chars if cut <= 0 else cut
                yield separator, sentence[:cut].strip()
                sentence, separator = sentence[cut:].strip(), " "
            if sentence:
                yield separator, sentence
                separator = " "


def _packed(segments: Iterator[tuple[str, str]] | Sequence[tuple[str, str]], max_chars: int) -> list[str]:
    packed: list[str] = []
    for separator, segment in segments:
        if packed and len(packed[-1]) + len(separator) + len(segment) <= max_chars:
            packed[-1] += separator + segment
        else:
            packed.append(segment)
    return packed


@dataclass(frozen=True)
class DataSource:
    """A data set that a user names: a path or Hub id, or a recipe's `data` keys.

    Attributes:
        config: path and other keys.
        columns: our names of columns -> theirs, of questions and answers.
    """

    config: DataConfig
    columns: Mapping[str, str]

    @property
    def path(self) -> Path | None:
        """The file or folder; None: a data set of the Hub."""
        path = Path(expand(self.config.paths[0]))
        return path if path.exists() else None

    @property
    def name(self) -> str:
        """Its name without the folders of this machine."""
        return public_name(self.config.paths[0])[0]

    @property
    def options(self) -> dict[str, Any]:
        """The keys besides the path that are given."""
        return self.config.model_dump(exclude_unset=True, exclude={"path"})

    @property
    def public(self) -> dict[str, Any]:
        """What a manifest holds of it."""
        return {"path": self.name, **self.options, "columns": {**self.config.columns, **self.columns}}


def data_source(
    source: str | Path | Mapping[str, Any], role: str, *, columns: Mapping[str, str] | None = None
) -> DataSource:
    """Return the data set that a user names.

    Args:
        source: a path or Hub id; or the keys of a recipe's `data`, as a mapping or as YAML `{path: …, where: …}`.
        role: `pairs` or `documents`.
        columns: `question`, `answer`, `choices`, `negatives` or `source` -> column in the file.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: unknown keys, several paths.
    """
    values: Any = source
    if isinstance(source, str) and source.lstrip().startswith("{") and not os.path.lexists(source):
        values = parse_yaml(source, source=role)
    if not isinstance(values, Mapping):
        values = {"path": str(values)}
    config = check_fields(DataConfig, values, message_prefix=f"{role}: ")
    wrong = next((name for name in REFUSED_KEYS if name in config.model_fields_set), None)
    if wrong is not None or len(config.paths) > 1:
        raise ValueError(f"{role}: {wrong or 'several paths'} cannot be given here; write the rows into one file first")
    path = Path(expand(config.paths[0]))
    if not path.exists() and not HUB_ID.fullmatch(config.paths[0]):
        raise FileNotFoundError(f"{role}: no file or folder {path}")
    return DataSource(config, dict(columns or {}))


def check_apart(documents: str | Path | Mapping[str, Any], output: str | Path) -> None:
    """Raise if an output would be written into the folder of the documents, where the next call would read it."""
    folder = data_source(documents, "documents").path
    if folder is not None and folder.is_dir() and Path(output).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{output} is within the documents {folder}; choose an output outside of that folder")


def read_pairs(source: DataSource) -> list[QA]:
    """Return the pairs of a data set; errors as of `read_qa`."""
    options = source.options
    if not options:
        return read_qa(source.config.paths[0], columns=source.columns)
    if source.columns:
        raise ValueError("pairs: columns are given twice; name them in the keys of the data alone")
    return read_as_trained(source.config.paths[0], **options)


def documents_of_source(source: DataSource) -> list[Document]:
    """Return the documents of a folder, of a file of rows, or of a data set of the Hub.

    Raises:
        FileNotFoundError, ValueError: as of `read_document_folder`, or of `embrew.data.datasets.load`.
    """
    options = source.options
    if source.path is not None and not options:
        return read_document_folder(source.config.paths[0])
    rows = load(source.config.paths[0], kind="text", **options)
    return [Document(f"{number}", text, "") for number, text in enumerate(rows["text"])]
