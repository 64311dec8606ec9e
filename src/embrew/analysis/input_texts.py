"""Read the texts that an encoder is analysed on, from a data folder or file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embrew.analysis.vectors import Side
from embrew.data.beir import read_documents
from embrew.data.datasets import load
from embrew.data.formats import named
from embrew.data.reading import DEV_SPLITS, expand, find_file, read, splits, stem
from embrew.sampling import sample_in_order

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Texts:
    """Texts, and the side they are encoded as: documents with the prompt of documents, others without a prompt."""

    texts: list[str]
    side: Side = "text"

    @property
    def sha256(self) -> str:
        """Hash of the texts in their order."""
        return hashlib.sha256("\0".join(self.texts).encode()).hexdigest()


def find_split(path: str | Path, split: str | None = None, *, preferred: Sequence[str] = ("test", *DEV_SPLITS)) -> str:
    """Return `split`, or a folder's first split of `preferred`, else `train`."""
    folder = Path(expand(path))
    if split is not None or not folder.is_dir():
        return split or "train"
    names = splits(folder)
    return next((name for name in preferred if name in names), "train")


def read_texts(path: str | Path, *, split: str | None = None, max_texts: int | None = None, seed: int = 42) -> Texts:
    """Return the distinct texts of a corpus, of rows with a text, or of sentence pairs, in their order.

    Args:
        path: a folder with a corpus (its documents, title and text), a file, a folder of rows, or a data set of the
            Hub; rows have the column text, or sentence1 and sentence2.
        split: split of a folder; default: test, else dev, else train.
        max_texts: size of a seeded sample; default: all.
        seed: random seed of the sample.
    """
    source = Path(expand(path))
    if find_file(source, "corpus") if source.is_dir() else stem(source) == "corpus":
        if split is not None:
            logger.warning("%s is a corpus: split=%r has no effect", source, split)
        contents = [document.content for document in read_documents(source)]
        texts = [content for content in contents if content.strip()]
        if len(texts) < len(contents):
            logger.warning("%s: %d blank documents are excluded", source, len(contents) - len(texts))
        side: Side = "document"
    else:
        split = find_split(source, split)
        columns = _text_columns(path, split)
        texts = [text for column in columns for text in load(path, kind="text", split=split, columns=column)["text"]]
        side = "text"
    return Texts(sample_in_order(list(dict.fromkeys(texts)), max_texts, seed=seed), side)


def _text_columns(path: str | Path, split: str) -> list[dict[str, str]]:
    """Return a mapping of columns for each column of texts."""
    record = next(iter(read(path, split=split)), None)
    if record is None:
        raise ValueError(f"{path} holds no rows")
    for names in (("text",), ("sentence1", "sentence2")):
        columns = [column for name in names if (column := named(record.values, name))]
        if len(columns) == len(names):
            return [{"text": column} for column in columns]
    raise ValueError(
        f"{record.where}: no texts to analyse in the columns {', '.join(sorted(record.values))}; give rows with text, "
        "or with sentence1 and sentence2, or a folder with a corpus"
    )
