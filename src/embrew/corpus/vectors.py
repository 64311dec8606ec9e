"""Read a folder of encoded vectors, and search in it: verify the encoder, and read the texts of the documents."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embrew.corpus.job import ABOUT, MANIFEST, Job, Ranges, dequantize
from embrew.corpus.rows import shards
from embrew.corpus.shards import REPAIR, Manifest, read_blocks, read_manifest, read_shard, verified
from embrew.data.beir import Document
from embrew.data.rejects import Rejects
from embrew.files.writing import recover
from embrew.passport.of_index import PassportFiles, fault_between, read_files
from embrew.search import SearchIndex, Verify
from embrew.stores import Place, place_of
from embrew.text_encoder import TextEncoder, describe_run, model_hash, resolved_prompts, space_of, tokenizer_sha256


@dataclass(frozen=True)
class Vectors:
    """Ids and vectors on disk, in the order of the corpus.

    Iteration yields `(ids, codes)` per shard: a list of strings and an array `(rows, dimensions)` float32 or int8, or
    `(rows, ceil(dimensions / 8))` uint8 for binary.

    Examples:
        >>> for ids, codes in read_vectors("vectors"):  # doctest: +SKIP
        ...     index.add(vectors.dequantize(codes))
    """

    folder: Place
    manifest: Manifest

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def dimensions(self) -> int:
        """Dimensions of a vector before it was quantised."""
        return self.manifest.dimensions or 0

    @property
    def ranges(self) -> Ranges | None:
        """Ranges of int8 codes; None for other precisions."""
        return self.manifest.ranges

    @property
    def passport(self) -> PassportFiles | None:
        """Files of the passport of the model that made the vectors; None: the folder has none."""
        return read_files(self.folder / ABOUT, self.manifest.passport, repair=REPAIR)

    def __iter__(self) -> Iterator[tuple[list[str], np.ndarray]]:
        return map(read_shard, self._files())

    def _files(self) -> Iterator[Path]:
        """Yield the files of the shards; each is compared with the manifest first."""
        for _, entry in sorted(self.manifest.shards.items()):
            try:
                with verified(self.folder, entry) as file:
                    yield file
            except (ValueError, FileNotFoundError) as error:
                if read_manifest(self.folder) != self.manifest:
                    raise ValueError(f"{self.folder} was replaced while it was read; open it again") from error
                raise

    def dequantize(self, codes: np.ndarray) -> np.ndarray:
        """Return float32 `(rows, dimensions)` vectors of codes: int8 within half a step, binary as -1 and 1."""
        return dequantize(codes, dimensions=self.dimensions, ranges=self.ranges)

    def load(self) -> tuple[list[str], np.ndarray]:
        """Return all ids and all vectors, float32 `(rows, dimensions)`."""
        ids: list[str] = []
        vectors = np.empty((len(self), self.dimensions), dtype=np.float32)
        for file in self._files():
            for names, codes in read_blocks(file):
                vectors[len(ids) : len(ids) + len(names)] = self.dequantize(codes)
                ids += names
        return ids, vectors


def holds_vectors(folder: str | Place) -> bool:
    """Return whether `encode_corpus` wrote a folder; a path, or a URL."""
    return (place_of(folder) / MANIFEST).is_file()


def read_vectors(folder: str | Place, *, partial: bool = False) -> Vectors:
    """Open a folder that `encode_corpus` wrote; each shard's sha256 is verified when it is read.

    Args:
        folder: the output folder; a path, or a URL.
        partial: accept a folder whose corpus is not completely encoded.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: the corpus is not completely encoded.
    """
    folder = place_of(folder)
    if isinstance(folder, Path):
        recover(folder)
    manifest = read_manifest(folder)
    if not manifest.complete and not partial:
        raise ValueError(
            f"{folder} is not complete ({manifest.rows:,} rows so far); give the same embrew encode, or partial=True"
        )
    return Vectors(folder, manifest)


def query_options(vectors: Vectors, encoder: TextEncoder, *, any_encoder: bool = False) -> dict[str, int]:
    """Return keywords for `encode_query` that make an encoder's queries comparable with these vectors.

    Args:
        vectors: the vectors.
        encoder: encodes the queries.
        any_encoder: accept another encoder, to compare it with the vectors; its searches are wrong.

    Raises:
        ValueError: the vectors are of another model, tokenizer or prompt, of queries, or signs only.
    """
    made_of, folder = vectors.manifest.made_of, vectors.folder
    if made_of["prompt_name"] != "document":
        raise ValueError(
            f"{folder} holds vectors of a {made_of['prompt_name']}; search compares queries with documents: encode the "
            "corpus with --prompt-name document"
        )
    if made_of["precision"] == "binary":
        raise ValueError(
            f"{folder} holds signs only (precision binary), which give no cosines; encode with --precision float32 or "
            "int8"
        )
    now = {"model": (made_of["model_hash"], space_of(encoder))}
    if now["model"][1] is None:  # it makes documents too
        now = {
            "model": (made_of["model_hash"], model_hash(encoder)),
            "tokenizer": (made_of["tokenizer_sha256"], tokenizer_sha256(encoder)),
            "prompt": (made_of["prompt"], resolved_prompts(encoder)["document"]),
        }
    different = [name for name, (earlier, current) in now.items() if earlier != current]
    if different and not any_encoder:
        dtype = describe_run(encoder)["dtype"]
        other = f" (encoded in {made_of['dtype']}, opened in {dtype})" if dtype != made_of["dtype"] else ""
        raise ValueError(
            f"{folder} was encoded with another {', '.join(different)}{other}{fault_between(vectors.passport, encoder)}"
            "; vectors of two models cannot be compared: give the model and the --dtype that encoded it, or encode the "
            "corpus again"
        )
    if space_of(encoder) and made_of["num_layers"] is not None and not any_encoder:
        raise ValueError(
            f"{folder} holds vectors of the first {made_of['num_layers']} layers of its model, and this encoder's "
            "queries are for those of all layers; encode the corpus with all"
        )
    return {name: made_of[name] for name in ("truncate_dim", "num_layers") if made_of[name] is not None}


def texts_of(vectors: Vectors, input: str | Place) -> list[str]:
    """Read the corpus again and return the texts of all vectors, in their order.

    Raises:
        ValueError: the corpus does not hold the ids and texts that were encoded.
    """
    made_of, entries = vectors.manifest.made_of, vectors.manifest.shards
    columns = {name: made_of[name] for name in ("shard_rows", "id_column", "text_column")}
    texts: list[str] = []
    for shard in shards(Job(input=input, output="", **columns), Rejects(io.StringIO(), max_rate=1.0)):
        if shard.number not in entries or entries[shard.number].input_sha256 != shard.sha256:
            break
        texts += [row.text for row in shard.rows]
    else:
        if len(texts) == len(vectors):
            return texts
    raise ValueError(
        f"{input} does not hold the rows that {vectors.folder} was made of (from row {len(texts) + 1} on); give the "
        "corpus that was encoded, or encode this one"
    )


def open_index(
    folder: str | Place,
    encoder: TextEncoder,
    corpus: str | Place | None = None,
    *,
    verify: Verify = "fast",
    any_encoder: bool = False,
) -> SearchIndex:
    """Open an index for an encoder that made it, or whose `space` it is.

    Args:
        folder: folder of a `SearchIndex`, or vectors that `encode_corpus` wrote; a path, or a URL of the latter.
        encoder: encodes the queries.
        corpus: of vectors, the corpus, for texts; without it, documents have ids only.
        verify: of an index, as `SearchIndex.load`; vectors are read and verified completely.
        any_encoder: accept another encoder, to compare it with the index; its searches are wrong.

    Raises:
        FileNotFoundError, ValueError: as `SearchIndex.load`, `read_vectors`, `query_options` and `texts_of`.
    """
    if not holds_vectors(folder):
        return SearchIndex.load(str(folder), encoder, verify=verify, any_encoder=any_encoder)
    vectors = read_vectors(folder)
    options = query_options(vectors, encoder, any_encoder=any_encoder)
    texts = [""] * len(vectors) if corpus is None else texts_of(vectors, corpus)
    ids, array = vectors.load()
    documents = [Document(id=name, text=text) for name, text in zip(ids, texts, strict=True)]
    index = SearchIndex.of_vectors(encoder, documents, array, query_options=options, copy=False)
    index.passport = vectors.passport
    return index
