"""The texts that an encoder is analysed on, from a data folder or file, and their vectors."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from embrew.data.beir import read_documents
from embrew.data.datasets import load
from embrew.data.formats import named
from embrew.data.reading import DEV_SPLITS, expand, find_file, read, splits, stem
from embrew.encoder import Encoder
from embrew.ranking import sample_in_order
from embrew.text_encoder import TextEncoder, encode_options

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
Side = Literal["text", "document"]


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
    is_corpus = bool(find_file(source, "corpus")) if source.is_dir() else stem(source) == "corpus"
    if is_corpus:
        if split is not None:
            logger.warning("%s is a corpus: split=%r has no effect", source, split)
        contents = [document.content for document in read_documents(source)]
        texts = [content for content in contents if content.strip()]
        if len(texts) < len(contents):
            logger.warning("%s: %d blank documents are excluded", source, len(contents) - len(texts))
    else:
        split = find_split(source, split)
        columns = _text_columns(path, split)
        texts = [
            text for name in columns for text in load(path, kind="text", split=split, columns={"text": name})["text"]
        ]
    side: Side = "document" if is_corpus else "text"
    return Texts(sample_in_order(list(dict.fromkeys(texts)), max_texts, seed=seed), side)


def _text_columns(path: str | Path, split: str) -> list[str]:
    """Return the columns that hold texts."""
    record = next(iter(read(path, split=split)), None)
    if record is None:
        raise ValueError(f"{path} holds no rows")
    for names in (("text",), ("sentence1", "sentence2")):
        columns = [column for name in names if (column := named(record.values, name))]
        if len(columns) == len(names):
            return columns
    raise ValueError(
        f"{record.where}: no texts to analyse in the columns {', '.join(sorted(record.values))}; give rows with text, "
        "or with sentence1 and sentence2, or a folder with a corpus"
    )


def unnormalised(encoder: Encoder | SentenceTransformer) -> TextEncoder:
    """Return the encoder, on the same weights, without the normalisation that comes last."""
    if isinstance(encoder, Encoder):
        return encoder.with_settings(normalize=False)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize

    modules = list(encoder)
    while isinstance(modules[-1], Normalize):
        modules.pop()
    return SentenceTransformer(  # type: ignore[return-value]  # its prompts may be None
        modules=modules,
        prompts={name: prompt or "" for name, prompt in encoder.prompts.items()},
        default_prompt_name=encoder.default_prompt_name,
        device=str(encoder.device),
        truncate_dim=encoder.truncate_dim,
        trust_remote_code=False,
    )


def vectors_of(
    encoder: TextEncoder,
    texts: Sequence[str],
    *,
    side: Side = "text",
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> np.ndarray:
    """Return float32 vectors `(texts, dimensions)`: of `encode`, or for `document` of `encode_document`."""
    encode = encoder.encode_document if side == "document" else encoder.encode
    options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    return np.asarray(encode(list(texts), **options), dtype=np.float32)
