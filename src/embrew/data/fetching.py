"""Download data sets of the Hub and sets of files (`embrew.data.sets`), and write them as folders of rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from embrew.data.documents import split_sentences
from embrew.data.formats import Record, Values, parse_json
from embrew.data.reading import read
from embrew.data.sets import FileSet, HubSet
from embrew.files.checksums import is_intact, write_checksums
from embrew.files.reading import read_json
from embrew.files.writing import atomic_folder, write_json, write_jsonl

ABOUT = "source.json"  # in each folder: source, licence, commit, numbers of rows; written last
MOST_BYTES = 10_000_000  # of a file
SHORTEST = 200  # characters of a paragraph
WORD = re.compile(r"\w+")


def fetch(source: HubSet | FileSet, folder: Path) -> bool:
    """Download a data set, or a set of files, and write it into `folder`; return False if it is there already.

    The number of rows of each split or file is written into `source.json`, and the commit of a data set of the Hub.

    Raises:
        FileExistsError: `folder` holds something else.
        FileNotFoundError: no such data set, commit or file, or there is no network.
        ValueError: rows are not of the form that the conversion reads, or of a data set none is left.
    """
    about: dict[str, Any] = {"source": asdict(source)}
    if (folder / ABOUT).is_file() and is_intact(folder) and read_json(folder / ABOUT).get("source") == about["source"]:
        return False
    with atomic_folder(folder, marker=ABOUT, overwrite=True) as new:
        if isinstance(source, FileSet):
            counts = {name: write_jsonl(new / f"{name}.jsonl", _download(source, name)) for name in source.files}
        else:
            about["commit"] = commit = _commit(source)
            counts = {
                split: write_jsonl(new / f"{split}.jsonl.gz", _rows(source, split, commit)) for split in source.splits
            }
            if not all(counts.values()):
                raise ValueError(f"{source.hub} at {commit} has no rows that can be used: {counts}")
        write_json(new / ABOUT, {**about, "rows": counts})
        write_checksums(new)
    return True


def _download(source: FileSet, name: str) -> list[dict[str, str]]:
    """Return the rows of a file."""
    url = source.url.format(name=name)
    try:
        with urlopen(url, timeout=60) as answer:
            text = answer.read(MOST_BYTES).decode()
    except OSError as error:
        raise FileNotFoundError(f"{url} cannot be downloaded ({error}); repeat the command with a network") from error
    try:
        content = parse_json(text, repair="download it again")
        if not isinstance(content, list) or not content:
            raise TypeError("no list, or an empty one")
        rows = [{column: _text(row[column], column) for column in source.columns} for row in content]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{url} is no JSON list of rows with {', '.join(source.columns)} ({error!r})") from error
    return rows


def _text(value: Any, column: str) -> str:
    """Return a text, or a number as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{column} holds {value!r:.80}, not a text")
    return str(value)


def _commit(source: HubSet) -> str:
    """Return the commit to download, which the Hub is asked for."""
    import httpx2
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(source.hub, revision=source.revision).sha
    except (OSError, httpx2.HTTPError) as error:
        raise FileNotFoundError(
            f"data set {source.hub} of the Hub cannot be downloaded ({error}); repeat the command with a network"
        ) from error
    assert commit is not None
    return commit


def _rows(source: HubSet, split: str, commit: str) -> Iterator[Values]:
    """Yield the rows of a split's folder; those with an empty text are left out."""
    records = read(source.hub, name=source.config, split=split, revision=commit)
    for record in islice(records, 0, None, source.every):
        if source.make is not None:
            yield from MAKE[source.make](record)
            continue
        row = dict(zip(source.columns, _values(record, *source.columns.values()), strict=True))
        if all(value is not None and _checked(value, column, record).strip() for column, value in row.items()):
            yield row


def _values(record: Record, *columns: str) -> list[Any]:
    missing = [column for column in columns if column not in record.values]
    if missing:
        raise ValueError(
            f"{record.where} has no column {', '.join(missing)}, but {', '.join(record.values)}: the data set has "
            "changed on the Hub; name it in a recipe's data by its id, with columns"
        )
    return [record.values[column] for column in columns]


def _checked(value: Any, column: str, record: Record) -> str:
    """Return a value as text; raise if it is neither a text nor a number."""
    try:
        return _text(value, column)
    except ValueError as error:
        raise ValueError(f"{record.where}: {error}; name another data set, or its columns in a recipe's data") from None


def _texts(record: Record, *columns: str) -> list[str]:
    return [_checked(value, column, record) for value, column in zip(_values(record, *columns), columns, strict=True)]


def _answers(record: Record) -> list[str]:
    """Return the answers of a row in SQuAD's form."""
    (answers,) = _values(record, "answers")
    texts = answers.get("text") if isinstance(answers, Mapping) else None
    if not isinstance(texts, list) or not texts:
        raise ValueError(f"{record.where}: answers holds {answers!r:.80}, no list of texts")
    return [_checked(text, "answers", record) for text in texts]


def _answer_sentences(record: Record) -> Iterator[Values]:
    """Yield the question, the only sentence that has the answer, and the most similar of those without it."""
    (context, question), answers = _texts(record, "context", "question"), _answers(record)
    sentences = split_sentences(context)
    answering = [sentence for sentence in sentences if answers[0] in sentence]
    others = [sentence for sentence in sentences if not any(answer in sentence for answer in answers)]
    if len(answering) == 1 and others:
        question_words = _words(question)
        closest = max(others, key=lambda sentence: len(question_words & _words(sentence)))
        yield {"query": question, "positive": answering[0], "negative": closest}


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))


def _questions(record: Record) -> Iterator[Values]:
    context, question = _texts(record, "context", "question")
    yield {"context": context, "instruction": question, "target": _answers(record)[0]}


def _paragraphs(record: Record) -> Iterator[Values]:
    title, text = _texts(record, "title", "text")
    parts = (part.strip() for part in text.split("\n\n"))
    yield from ({"text": part, "title": title} for part in parts if len(part) >= SHORTEST)


MAKE: dict[str, Callable[[Record], Iterator[Values]]] = {
    "answer_sentences": _answer_sentences,
    "questions": _questions,
    "paragraphs": _paragraphs,
}
