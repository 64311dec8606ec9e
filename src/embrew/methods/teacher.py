"""Vectors of a teacher: computed once for each text, kept in shards, bound to teacher and text by hash."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed

from embrew.distributed import rank, world_size
from embrew.encoder import Encoder
from embrew.files.checksums import digest_of
from embrew.files.formats import TEACHER
from embrew.files.reading import read_json
from embrew.files.writing import atomic_path, write_json
from embrew.stock import MODULES, open_stock
from embrew.storage.foreign import file_of
from embrew.storage.opening import SETTINGS, final_stage
from embrew.text_encoder.hashes import vectors_hash

logger = logging.getLogger(__name__)
UNIT = 1024  # texts of a shard
SIDES = {"query": "encode_query", "document": "encode_document"}  # other roles: plain texts


def open_teacher(name: str) -> Any:
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
        dimensions: of a vector.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.teacher: Any = open_teacher(name)
        self.hash = vectors_hash(self.teacher)
        self.dimensions = int(self.teacher.get_embedding_dimension())
        about = folder / TEACHER.file
        if about.is_file():
            kept = read_json(about, keys=("teacher", "hash"), kind=TEACHER)
            if kept["hash"] != self.hash:
                raise ValueError(
                    f"{folder} holds vectors of {kept['teacher']}, and objective.teacher={name} gives others; name "
                    "another folder in objective.vectors"
                )
        elif rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(about, {"format": TEACHER.number, "teacher": Path(name).name, "hash": self.hash})
        self.places: dict[bytes, tuple[int, int]] = {}
        self.shards: list[Tensor] = []
        self.files: set[Path] = set()  # that were read

    def add(self, texts: Mapping[str, Sequence[str]]) -> None:
        """Make sure that there is a vector of each text, by role.

        Processes share the work; finished shards are kept, and a resumed run computes only what is missing.

        Raises:
            ValueError: a vector of the teacher is zero or not finite.
        """
        for file in sorted(self.folder.glob("*.safetensors")):
            self._read(file)
        _wait()  # all have seen the same files
        wanted = [(role, text) for role, of in texts.items() for text in dict.fromkeys(of)]
        missing = [(role, text) for role, text in wanted if key(role, text) not in self.places]
        missing.sort(key=lambda pair: pair[0])
        units = [missing[start : start + UNIT] for start in range(0, len(missing), UNIT)]
        for number, unit in enumerate(units):
            if number % world_size() == rank():
                self._compute(unit)
                logger.info("teacher's vectors  %d/%d texts", min((number + 1) * UNIT, len(missing)), len(missing))
        _wait()
        for unit in units:
            self._read(self._file(unit))

    def of(self, role: str, texts: Sequence[str]) -> Tensor:
        """Return unit vectors of texts, float32 `(texts, dimensions)`."""
        places = [self.places[key(role, text)] for text in texts]
        rows = [self.shards[shard][row] for shard, row in places]
        return torch.stack(rows) if rows else torch.zeros(0, self.dimensions)

    def _file(self, unit: Sequence[tuple[str, str]]) -> Path:
        return self.folder / f"{digest_of([self.hash, unit])[:32]}.safetensors"

    def _compute(self, unit: Sequence[tuple[str, str]]) -> None:
        vectors = np.empty((len(unit), self.dimensions), dtype=np.float32)
        for role in {role for role, _ in unit}:
            rows = [row for row, pair in enumerate(unit) if pair[0] == role]
            encode = getattr(self.teacher, SIDES.get(role, "encode"))
            vectors[rows] = encode([unit[row][1] for row in rows], show_progress_bar=False, convert_to_numpy=True)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        wrong = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
        if len(wrong):
            raise ValueError(
                f"the teacher's vector of {unit[wrong[0]][1][:60]!r} is zero or not finite; remove the row"
            )
        keys = np.frombuffer(b"".join(key(role, text) for role, text in unit), dtype=np.uint8).reshape(len(unit), -1)
        tensors = {"keys": torch.from_numpy(keys.copy()), "vectors": torch.from_numpy(vectors / norms)}
        with atomic_path(self._file(unit)) as temporary:
            save_file(tensors, temporary, metadata={"teacher": self.hash})

    def _read(self, file: Path) -> None:
        if file in self.files:
            return
        try:
            tensors = load_file(file)  # mapped into memory
        except (OSError, SafetensorError):
            logger.warning("%s is damaged; its vectors are computed again", file)
            return
        for row, one in enumerate(tensors["keys"].numpy()):
            self.places.setdefault(one.tobytes(), (len(self.shards), row))
        self.shards.append(tensors["vectors"])
        self.files.add(file)


def key(role: str, text: str) -> bytes:
    """Return 16 bytes that stand for a text as a query, as a document, or as neither."""
    side = role if role in SIDES else ""
    return blake2b(f"{side}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _wait() -> None:
    if world_size() > 1:
        distributed.barrier()
