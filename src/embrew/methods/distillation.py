"""Distillation of a teacher's embeddings into the encoder's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from embrew.data.reading import expand
from embrew.distributed import rank, wait, world_size
from embrew.encoder import Encoder
from embrew.files.checksums import digest_of
from embrew.files.formats import TEACHER
from embrew.files.reading import read_json
from embrew.files.sealed import check_file, sealed
from embrew.files.writing import write_json
from embrew.float32 import full_float32
from embrew.methods.base import Count, CountOrNone, NotNegative
from embrew.methods.embedding import EmbeddingObjective, Inputs, RepeatedTexts, plain_tokens, text_keys
from embrew.model.batching import embed_by_length
from embrew.model.pooling import orthogonal, pool
from embrew.stock import MODULES, open_stock
from embrew.storage.foreign import file_of
from embrew.storage.loading import SETTINGS, final_stage
from embrew.storage.parts import write_tensors
from embrew.text.texts import SIDES
from embrew.text.tokens import Tokens
from embrew.text_encoder import vectors_hash

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

UNIT = 1024  # texts of a shard


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
        self.name = name
        self.about = folder / TEACHER.file
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"objective.vectors={folder} is a file; name a folder")
        if self.about.is_file():
            again = "remove this file; the vectors beside it are kept"
            kept = read_json(self.about, keys=("teacher", "hash"), kind=TEACHER, repair=again)
            if kept["hash"] != self.hash:
                raise ValueError(self._not_of_teacher(f"{folder} holds vectors of {kept['teacher']}"))
        self.places: dict[bytes, tuple[int, int]] = {}
        self.shards: list[Tensor] = []
        self.files: set[Path] = set()  # that were read
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
        wanted = [(role, text) for role, of in texts.items() for text in dict.fromkeys(of)]
        missing = [(role, text) for role, text in wanted if key(role, text) not in self.places]
        missing.sort(key=lambda pair: pair[0])
        units = [missing[start : start + UNIT] for start in range(0, len(missing), UNIT)]
        for number, unit in enumerate(units):
            if number % world_size() == rank():
                self._compute(unit)
                logger.info("teacher's vectors  %d/%d texts", min((number + 1) * UNIT, len(missing)), len(missing))
        wait()
        for unit in units:
            self._read(self._file(unit))
        if rank() == 0:
            for file in self.damaged - self.files:  # computed again, under another name
                file.unlink(missing_ok=True)

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
            encode = getattr(self.teacher, f"encode_{role}" if role in SIDES else "encode")  # others: plain texts
            vectors[rows] = encode([unit[row][1] for row in rows], show_progress_bar=False, convert_to_numpy=True)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        wrong = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
        if len(wrong):
            raise ValueError(
                f"the teacher's vector of {unit[wrong[0]][1][:60]!r} is zero or not finite; remove the row"
            )
        keys = np.frombuffer(b"".join(key(role, text) for role, text in unit), dtype=np.uint8).reshape(len(unit), -1)
        tensors = {"keys": torch.from_numpy(keys.copy()), "vectors": torch.from_numpy(vectors / norms)}
        write_tensors(self._file(unit), tensors, metadata={"teacher": self.hash})

    def _read(self, file: Path) -> None:
        if file in self.files:
            return
        try:
            check_file(file)
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
        for row, one in enumerate(keys.numpy()):
            self.places.setdefault(one.tobytes(), (len(self.shards), row))
        self.shards.append(vectors)
        self.files.add(file)

    def _not_of_teacher(self, found: str) -> str:
        return f"{found}, and objective.teacher={self.name} gives others; name another folder in objective.vectors"


def key(role: str, text: str) -> bytes:
    """Return 16 bytes that stand for a text as a query, as a document, or as neither."""
    side = role if role in SIDES else ""
    return blake2b(f"{side}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


FIT_ROWS = 64  # embedded at a time
RIDGE = 0.003
Student = tuple[int, int]  # number of layers, 0 for all of them, and number of dimensions


@dataclass(frozen=True, kw_only=True)
class SingleTexts(Inputs):
    """Texts without a partner, under one role.

    Attributes:
        role: `text`: as `Encoder.encode` reads them; `query`, `document`: with that side's prompt and length limit.
    """

    role: str = "text"

    def strings(self, rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
        """Return the texts."""
        return {self.role: [row["text"] for row in rows]}

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Return tokens, and keys that are equal where texts are equal."""
        texts = self.strings(rows)[self.role]
        if self.role in SIDES:
            limit, prompt = encoder.max_length[self.role], encoder.prompts[self.role]
            tokens = Tokens.pad(encoder.template.rows(texts, instruction=prompt, max_length=limit))
        else:
            tokens = plain_tokens(texts, encoder)
        return {self.role: tokens, f"{self.role}_keys": text_keys(texts)}

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return the texts under their role."""
        return {self.role: batch[self.role]}


@dataclass(kw_only=True)
class EmbeddingDistillation(EmbeddingObjective):
    """Mean over texts of 1 − cos(s, t), or of ‖s − t‖²: s = W e(text), t the teacher's unit vector of the same text.

    e is the encoder's embedding, scaled to length 1. W is learned and used in training only, unless `projection:
    false`: then s is the embedding as the encoder makes it, whose length matters to `distance: squared`. It needs the
    teacher's number of dimensions (`encoder.pooling.projection`), and a query of the student can be compared with
    documents of the teacher.

    Texts need no labels, as in *LEAF: Knowledge Distillation of Text Embedding Models with Teacher-Aligned
    Representations* (arXiv 2509.12539) and in the first stage of *Jasper and Stella* (arXiv 2412.19048).

    Attributes:
        teacher: a folder or Hub id of a Sentence-Transformers model, or of an encoder that embrew trained; None: rows
            have its vectors in the column `vector`.
        vectors: a folder that keeps the teacher's vectors for further runs; None: the run's own, removed with it.
        distance: `cosine` or `squared`.
        side: what texts are, for the prompts of both models: `text` (neither), `query` or `document`; without `base`.
        projection: learn W.
        fitted: rows of the first data set by which W starts as the ridge regression of the teacher's vectors on the
            encoder's embeddings; 0: W starts orthogonal. With `projection: false`, the encoder's own projection does.
        layers: numbers of layers of further students, each with its own W; "layer i" is the model truncated to i
            layers, final norm included. The last layer is trained only if it is among them. None: the last layer.
        dims: numbers of leading dimensions of students, likewise; None: all.
        base: an objective on the same texts, such as `contrastive`, whose loss is added for the last layer; its rows
            are read, and all their texts are distilled.
        base_weight: its weight.
    """

    teacher: str | None = None
    vectors: str | None = None
    distance: Literal["cosine", "squared"] = "cosine"
    side: Literal["text", "query", "document"] = "text"
    projection: bool = True
    fitted: CountOrNone = 2048
    layers: list[Count] | None = None
    dims: list[Count] | None = None
    base: EmbeddingObjective | None = None
    base_weight: NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known: TeacherVectors | None = None
        self._wide = 0  # dimensions of the teacher
        self._begin: dict[Student, Tensor] = {}  # W at the start

    def check_settings(self) -> None:
        """Raise where settings do not go together."""
        for name, values in (("layers", self.layers), ("dims", self.dims)):
            if values is not None and (not values or len(set(values)) < len(values)):
                raise ValueError(f"{name}={values}; give different numbers, or leave it out")
        if not self.projection and self.dims:
            raise ValueError("dims need a W for each number of dimensions; leave out projection: false, or dims")
        if self.base is not None and self.side != "text":
            raise ValueError(f"side={self.side!r} is for single texts; a base names the sides of its texts")
        if self.teacher is None and (self.vectors is not None or self.base is not None):
            raise ValueError("vectors and base need a teacher; the column vector belongs to single texts")
        inputs = None if self.base is None else self.base.inputs
        if inputs is not None and (inputs.embed is not Encoder.__call__ or type(inputs).strings is Inputs.strings):
            raise ValueError(f"base={type(self.base).__name__}: give an objective with one embedding of each text")

    @property
    def inputs(self) -> Inputs:
        """Single texts, or the base's; embedded at every layer if `layers` are given."""
        inputs = SingleTexts(role=self.side) if self.base is None else self.base.inputs
        if not self.layers:
            return inputs
        deepest = max(self.layers) if self.skips_layers else None
        return replace(inputs, embed=partial(Encoder.layers, num_layers=deepest))

    @property
    def skips_layers(self) -> bool:
        """With `layers`; a base reads the last one."""
        return self.layers is not None and self.base is None

    def setup(self, encoder: Encoder) -> None:
        """Check layers and dimensions; set up the base."""
        super().setup(encoder)
        for name, values, most in (
            ("layers", self.layers, encoder.backbone.num_layers),
            ("dims", self.dims, encoder.width),
        ):
            if values and max(values) > most:
                raise ValueError(f"{name}={values}; give numbers from 1 to {most}")
        if self.base is not None:
            self.base.setup(encoder)
        else:
            encoder.backbone.set_attention_dropout(0.0)

    def precompute(self, dataset: Dataset, encoder: Encoder, folder: Path | None = None) -> Dataset:
        """Compute the teacher's vectors of all texts that `vectors` does not hold yet.

        Without `folder` (a plan, or a measured step) no teacher is opened, and its vectors are zero.

        Raises:
            ValueError: `projection: false` and another number of dimensions; `vectors` is of another teacher.
        """
        if self.teacher is None:
            given = dataset["vector"] if "vector" in dataset.column_names else []
            widths = {len(vector or []) for vector in given}
            if 0 in widths or len(widths | {self._wide} - {0}) != 1:
                raise ValueError(
                    f"column vector holds {sorted(widths) or 'no'} dimensions; without objective.teacher, each row "
                    "needs text and vector, a list of numbers of one length"
                )
            self._wide = widths.pop()
        elif folder is None:
            self._wide = encoder.width
            return dataset
        elif self._known is None:
            kept = Path(expand(self.vectors)) if self.vectors else folder.parent / "teacher"
            self._known = TeacherVectors(expand(self.teacher), kept)
            self._wide = self._known.dimensions
        if not self.projection and self._wide != encoder.width:
            raise ValueError(
                f"projection=false compares {encoder.width} dimensions with the teacher's {self._wide}; set "
                f"encoder.pooling.projection: {self._wide}, or leave out projection: false"
            )
        if self._known is not None:
            self._known.add({self._side(role): of for role, of in self.inputs.strings(dataset.to_list()).items()})
        pooling = encoder.settings.pooling
        learns = self.projection or (pooling.projection is not None and pooling.mode != "concat")
        if self.fitted and folder is not None and not self._begin and learns:
            self._fit(dataset.select(range(min(self.fitted, len(dataset)))).to_list(), encoder)
        return dataset

    @torch.no_grad()
    def _fit(self, rows: list[dict[str, Any]], encoder: Encoder) -> None:
        """Start every W, or the encoder's projection, as a ridge regression."""
        students = self._students(encoder.backbone.hidden_size if not self.projection else encoder.width)
        own: dict[Student, list[Tensor]] = {student: [] for student in students}
        teacher: list[Tensor] = []
        was_training = encoder.training
        encoder.eval()
        for start in range(0, len(rows), FIT_ROWS):
            batch = self.collate(rows[start : start + FIT_ROWS], encoder)
            for role, tokens in self.inputs.texts(batch).items():
                teacher.append(batch[f"{role}_teacher"])
                for student in students:
                    embed = partial(self._plain, encoder, student)
                    own[student].append(embed_by_length(embed, tokens.to(encoder.device), encoder.cost))
        encoder.train(was_training)
        targets = torch.cat(teacher)
        if self.projection:
            self._begin = {student: ridge(torch.cat(vectors), targets) for student, vectors in own.items()}
            return
        several = torch.cat([vector for vectors in own.values() for vector in vectors])
        self._begin = {students[0]: ridge(several, targets.repeat(len(students), 1))}
        head: Any = encoder.head
        head.weight.copy_(self._begin[students[0]])

    def _plain(self, encoder: Encoder, student: Student, tokens: Tokens) -> Tensor:
        """Return what a W multiplies, on the CPU; without W, pooled states before the encoder's projection."""
        layers, dims = student
        if self.projection:
            pooled = encoder(tokens, num_layers=layers or None)  # through a head, if there is one
        else:
            states = encoder.backbone.hidden_states(tokens, encoder.attention, num_layers=layers or None)
            pooled = pool(encoder.settings.pooling, states, tokens)
        as_it_is = self.distance == "squared" and not self.projection
        return (pooled if as_it_is else normalize(pooled[:, :dims], dim=-1)).cpu()

    def learned(self, encoder: Encoder) -> dict[str, nn.Parameter]:
        """Return W of each student, `(teacher's dimensions, dimensions)`."""
        if self._known is not None:
            self._known.teacher = None  # all its vectors are there
        students = self._students(encoder.width) if self.projection else []
        begin = {student: self._begin.get(student) for student in students}
        return {
            _name(student): nn.Parameter(
                (orthogonal(self._wide, student[1], seed=42) if weight is None else weight.clone()).to(encoder.device)
            )
            for student, weight in begin.items()
        }

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return the batch of the inputs, and the teacher's vectors of each role as `ROLE_teacher`."""
        batch = self.inputs.collate(rows, encoder, seed=seed)
        if self.teacher is None:
            given = torch.tensor([row["vector"] for row in rows], dtype=torch.float32).view(len(rows), self._wide)
            return {**batch, f"{self.side}_teacher": normalize(given, dim=-1)}
        for role, texts in self.inputs.strings(rows).items():
            none = torch.zeros(len(texts), self._wide)
            batch[f"{role}_teacher"] = none if self._known is None else self._known.of(self._side(role), texts)
        return batch

    def _side(self, role: str) -> str:
        """Return how the teacher reads a role: texts that stand in both, for dropout, are neither."""
        return "text" if isinstance(self.inputs, RepeatedTexts) else role

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of distilled texts, and the counts of the base."""
        number = sum(len(part) for name, part in batch.items() if name.endswith("_teacher"))
        return {"texts": number, **({} if self.base is None else self.base.counts(batch))}

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the mean distance over students and texts, plus the weighted loss of the base; and the parts."""
        vectors = next(iter(embeddings.values()))
        weight = self.unit_weights(batch, vectors.device)["texts"]
        parts: dict[str, Tensor] = {}
        for student in self._students(vectors.shape[-1]):
            layers, dims = student
            distances = []
            for role, of in embeddings.items():
                embedding = (of[layers - 1] if self.layers else of)[..., :dims]
                with full_float32(of.device.type), torch.autocast(of.device.type, enabled=False):
                    own = normalize(embedding.float(), dim=-1) if self.projection else embedding.float()
                    if self.projection:
                        own = linear(own, batch["learned"][_name(student)].float())
                    teacher = batch[f"{role}_teacher"]
                    if self.distance == "cosine":
                        each = 1 - (normalize(own, dim=-1) * teacher).sum(-1)
                    else:
                        each = (own - teacher).square().sum(-1)
                    distances.append(each.sum())
            parts[_name(student)] = torch.stack(distances).sum() * weight
        loss = torch.stack(list(parts.values())).mean()
        several = len(parts) > 1
        said = {name: part.detach() for name, part in parts.items()} if several else {"distance": loss.detach()}
        if self.base is None:
            return {"loss": loss, **said}
        last = {role: of[-1] if self.layers else of for role, of in embeddings.items()}
        base = self.base.total(last, batch)
        return {**base, **said, "loss": loss + self.base_weight * base["loss"], "base": base["loss"].detach()}

    def _students(self, width: int) -> list[Student]:
        return [(layers, dims) for layers in self.layers or [0] for dims in self.dims or [width]]


def ridge(vectors: Tensor, targets: Tensor) -> Tensor:
    """Return W `(targets' width, vectors' width)` of least Σ ‖W v − t‖² + λ‖W‖², in float64.

    λ is 0.003 times the mean over dimensions of Σ v².
    """
    own, wanted = vectors.double(), targets.double()
    gram = own.T @ own
    gram += RIDGE * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram, own.T @ wanted).T.float().contiguous()


def _name(student: Student) -> str:
    layers, dims = student
    return f"layers_{layers}_dims_{dims}" if layers else f"dims_{dims}"
