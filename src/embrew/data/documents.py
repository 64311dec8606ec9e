"""Read the documents of a corpus: an id, a title and a text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embrew.data.formats import read_file
from embrew.data.reading import expand, find_file, read
from embrew.data.record import Record


@dataclass(frozen=True)
class Document:
    """A text with an id and a title."""

    id: str
    text: str
    title: str = ""

    @property
    def content(self) -> str:
        """Text that is embedded: title and text joined by a space, or the text alone; white space is not changed."""
        return " ".join(part for part in (self.title, self.text) if part)


def read_documents(path: str | Path, *, split: str = "train") -> list[Document]:
    """Return the documents of a BEIR folder, or of rows with `text` (and `_id` or `id`, `title`).

    Rows without an id get their row number. Ids must be unique.
    """
    folder = Path(expand(path))
    corpus = find_file(folder, "corpus") if folder.is_dir() else None
    documents = list(_documents(read_file(corpus) if corpus else read(path, split=split)))
    if not documents:
        raise ValueError(f"{folder} holds no documents")
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise ValueError(f"{folder}: two documents have the id {document.id!r}; make ids unique")
        seen.add(document.id)
    return documents


def text_id(record: Record, *columns: str) -> str:
    """Return the id of a row as text; the row number if it has no such column.

    Raises:
        ValueError: its id is null, or neither a text nor an integer.
    """
    for column in columns:
        value = record.get(column)
        if value is None and column in record.values:
            raise ValueError(f"{record.where}: {column} is null; give every row an id, or leave the column out")
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise ValueError(f"{record.where}: {column} is a {type(value).__name__}; ids are texts or integers")
    return str(record.number)


def _documents(records: Iterator[Record]) -> Iterator[Document]:
    for record in records:
        text, title = record.get("text"), record.get("title")
        if not isinstance(text, str) or not isinstance(title, str | None):
            columns = ", ".join(record.values)
            raise ValueError(
                f"{record.where}: a document needs a column text (and may have _id, title); found {columns}"
            )
        yield Document(id=text_id(record, "_id", "id"), text=text, title=title or "")
