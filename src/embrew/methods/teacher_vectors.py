"""Vectors of a teacher, computed once for each text and kept in a folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from embrew.distributed import rank, wait, world_size
from embrew.encoder import Encoder
from embrew.files.checksums import check_sealed_file, digest_of, sealed
from embrew.files.formats import TEACHER
from embrew.files.reading import read_json
from embrew.files.writing import write_json
from embrew.stock import MODULES, open_stock
from embrew.storage.foreign import file_of
from embrew.storage.loading import SETTINGS, final_stage
from embrew.storage.parts import write_tensors
from embrew.text.texts import SIDES
from embrew.text_encoder import TextEncoder, vectors_hash

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
SHARD_SIZE = 1024  # texts


def open_teacher(name: str) -> Encoder | SentenceTransformer:
    """Return a trained encoder, or a Sentence-Transformers model, by folder or Hub id."""
    folder = final_stage(Path(name))
    if (folder / SETTINGS).is_file():
        return Encoder.from_pretrained(folder)
    if file_of(name, MODULES) is None:
        raise ValueError(
            f"objective.teacher={name} is no embedding model: it has neither {MODULES} (Sentence-Transformers) nor "
            f"{SETTINGS} (embrew); give one, or a folder that embrew trained"
        )
    return open_stock(name)


class TeacherVectors:
    """A folder of unit vectors by text and role; those that are missing are computed.

    Attributes:
        teacher: model that computes the vectors; None once all are there.
        hash: hash of the teacher, which its vectors depend on.
        dimensions: number of dimensions of a vector.
        positions: shard and row of each vector, by `vector_key`.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        teacher = open_teacher(name)
        self.teacher: Encoder | SentenceTransformer | None = teacher
        self.hash = vectors_hash(cast(TextEncoder, teacher))
        self.dimensions = int(teacher.get_embedding_dimension() or 0)
        self.name = name
        self.about = folder / TEACHER.file
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"objective.vectors={folder} is a file; name a folder")
        if self.about.is_file():
            repair = "remove this file; the vectors beside it are kept"
            about = read_json(self.about, keys=("teacher", "hash"), kind=TEACHER, repair=repair)
            if about["hash"] != self.hash:
                raise ValueError(self._not_of_teacher(f"{folder} holds vectors of {about['teacher']}"))
        self.positions: dict[bytes, tuple[int, int]] = {}
        self.shards: list[Tensor] = []
        self.files_read: set[Path] = set()
        self.damaged: set[Path] = set()

    def add(self, texts: Mapping[str, Sequence[str]]) -> None:
        """Make sure that there is a vector of each text, by role.

        Processes share the work; finished shards are kept, and a resumed run computes only what is missing.

        Raises:
            ValueError: a vector of the teacher is zero or not finite; a file of the folder is not of this teacher.
        """
        for file in sorted(self.folder.glob("*.safetensors")):
            self._read(file)
        wait()  # all have seen the same files
        if rank() == 0 and not self.about.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            about = {"format": TEACHER.number, "teacher": Path(self.name).name, "hash": self.hash}
            write_json(self.about, sealed(about))
        wait()
        pairs = [(role, text) for role, side in texts.items() for text in dict.fromkeys(side)]
        missing = [(role, text) for role, text in pairs if vector_key(role, text) not in self.positions]
        missing.sort(key=lambda pair: pair[0])
        shards = [missing[start : start + SHARD_SIZE] for start in range(0, len(missing), SHARD_SIZE)]
        for number, shard in enumerate(shards):
            if number % world_size() == rank():
                self._compute(shard)
                done = min((number + 1) * SHARD_SIZE, len(missing))
                logger.info("teacher's vectors  %d/%d texts", done, len(missing))
        wait()
        for shard in shards:
            self._read(self._file(shard))
        if rank() == 0:
            for file in self.damaged - self.files_read:  # computed again, under another name
                file.unlink(missing_ok=True)

    def vectors(self, role: str, texts: Sequence[str]) -> Tensor:
        """Return unit vectors of texts, float32 `(texts, dimensions)`."""
        positions = [self.positions[vector_key(role, text)] for text in texts]
        rows = [self.shards[shard][row] for shard, row in positions]
        return torch.stack(rows) if rows else torch.zeros(0, self.dimensions)

    def _file(self, shard: Sequence[tuple[str, str]]) -> Path:
        """Return the file of a shard, given as pairs of role and text."""
        return self.folder / f"{digest_of([self.hash, shard])[:32]}.safetensors"

    def _compute(self, shard: Sequence[tuple[str, str]]) -> None:
        """Write the vectors of a shard, given as pairs of role and text."""
        vectors = np.empty((len(shard), self.dimensions), dtype=np.float32)
        for role in {role for role, _ in shard}:
            rows = [row for row, pair in enumerate(shard) if pair[0] == role]
            encode = getattr(self.teacher, f"encode_{role}" if role in SIDES else "encode")  # others: plain texts
            vectors[rows] = encode([shard[row][1] for row in rows], show_progress_bar=False, convert_to_numpy=True)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        wrong = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
        if len(wrong):
            raise ValueError(
                f"the teacher's vector of {shard[wrong[0]][1][:60]!r} is zero or not finite; remove the row"
            )
        joined = b"".join(vector_key(role, text) for role, text in shard)
        keys = np.frombuffer(joined, dtype=np.uint8).reshape(len(shard), -1)
        tensors = {"keys": torch.from_numpy(keys.copy()), "vectors": torch.from_numpy(vectors / norms)}
        write_tensors(self._file(shard), tensors, metadata={"teacher": self.hash})

    def _read(self, file: Path) -> None:
        """Read a shard that has not been read yet; skip it where it is damaged."""
        if file in self.files_read:
            return
        try:
            check_sealed_file(file)
            with safe_open(file, "pt") as opened:  # mapped into memory
                same = (opened.metadata() or {}).get("teacher") == self.hash
                tensors = [opened.get_tensor(name) for name in ("keys", "vectors") if same]
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("%s is damaged; its vectors are computed again (%s)", file, error)
            self.damaged.add(file)
            return
        if not same:
            raise ValueError(self._not_of_teacher(f"{file} holds something else"))
        keys, vectors = tensors
        for row, key in enumerate(keys.numpy()):
            self.positions.setdefault(key.tobytes(), (len(self.shards), row))
        self.shards.append(vectors)
        self.files_read.add(file)

    def _not_of_teacher(self, content: str) -> str:
        return f"{content}, and objective.teacher={self.name} gives others; name another folder in objective.vectors"


def vector_key(role: str, text: str) -> bytes:
    """Return 16 bytes that stand for a text as a query, as a document, or as neither."""
    side = role if role in SIDES else ""
    return blake2b(f"{side}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
