"""Distillation of a teacher's embeddings into the encoder's.

With e(x) the encoder's embedding of a text x, scaled to length 1, t(x) the teacher's unit vector, and W learned:

    s = W e(x)
    cosine:   L = mean over x of 1 − cos(s, t(x))
    squared:  L = mean over x of ‖s − t(x)‖²

as in *LEAF: Knowledge Distillation of Text Embedding Models with Teacher-Aligned Representations* (arXiv 2509.12539)
and in the first stage of *Jasper and Stella* (arXiv 2412.19048); texts need no labels. The teacher's vectors are
computed once (`teacher_vectors`). W starts as a ridge regression of them on the untrained embeddings v:

    W = argmin Σ ‖W v − t‖² + λ ‖W‖²,    λ = 0.003 · mean over dimensions of Σ v²
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from embrew.data.reading import expand
from embrew.encoder import Encoder
from embrew.float32 import full_float32
from embrew.methods.base import Batch, Count, CountOrNone, DataRow, NotNegative
from embrew.methods.embedding import EmbeddingObjective, Inputs, RepeatedTexts, plain_tokens, text_keys
from embrew.methods.teacher_vectors import TeacherVectors
from embrew.model.attention import evaluating
from embrew.model.batching import embed_by_length
from embrew.model.pooling import Projection, orthogonal, pool
from embrew.text.texts import SIDES
from embrew.text.tokens import Tokens

if TYPE_CHECKING:
    from datasets import Dataset

FIT_ROWS = 64  # rows of a batch that W is fitted to
RIDGE = 0.003


def ridge(vectors: Tensor, targets: Tensor) -> Tensor:
    """Return W `(targets' width, vectors' width)`, computed in float64."""
    v, t = vectors.double(), targets.double()
    gram = v.T @ v
    gram += RIDGE * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram, v.T @ t).T.float().contiguous()


@torch.no_grad()
def embeddings_at_rest(encoder: Encoder, batches: Sequence[Tokens], embed: Callable[[Tokens], Tensor]) -> Tensor:
    """Return embeddings of texts on the CPU, without dropout, of all batches concatenated."""
    with evaluating(encoder):
        return torch.cat([embed_by_length(embed, tokens.to(encoder.device), encoder.cost).cpu() for tokens in batches])


class Student(NamedTuple):
    """What a W multiplies: an embedding of some layers and dimensions.

    Attributes:
        layers: number of layers; 0: all.
        dims: number of leading dimensions.
    """

    layers: int
    dims: int

    @property
    def name(self) -> str:
        """Its name among learned parameters and in the log."""
        return f"layers_{self.layers}_dims_{self.dims}" if self.layers else f"dims_{self.dims}"


@dataclass(frozen=True, kw_only=True)
class SingleTexts(Inputs):
    """Texts without a partner, under one role.

    Attributes:
        role: `text`: as `Encoder.encode` reads them; `query`, `document`: with that side's prompt and length limit.
    """

    role: str = "text"

    def strings(self, rows: Sequence[DataRow]) -> dict[str, list[str]]:
        """Return the texts."""
        return {self.role: [row["text"] for row in rows]}

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> Batch:
        """Return tokens, and keys that are equal where texts are equal."""
        texts = self.strings(rows)[self.role]
        if self.role in SIDES:
            limit, prompt = encoder.max_length[self.role], encoder.prompts[self.role]
            tokens = Tokens.pad(encoder.template.rows(texts, instruction=prompt, max_length=limit))
        else:
            tokens = plain_tokens(texts, encoder)
        return {self.role: tokens, f"{self.role}_keys": text_keys(texts)}

    def texts(self, batch: Batch) -> dict[str, Tokens]:
        """Return the texts under their role."""
        return {self.role: batch[self.role]}


@dataclass(kw_only=True)
class EmbeddingDistillation(EmbeddingObjective):
    """Mean over texts of 1 − cos(s, t), or of ‖s − t‖²: s = W e(text), t the teacher's unit vector of the same text.

    W is used in training only, unless `projection: false`: then s is the embedding as the encoder makes it, whose
    length matters to `distance: squared`. It needs the teacher's number of dimensions (`encoder.pooling.projection`),
    and a query of the student can be compared with documents of the teacher.

    Attributes:
        teacher: a folder or Hub id of a Sentence-Transformers model, or of an encoder that embrew trained; None: rows
            have its vectors in the column `vector`.
        vectors: a folder that keeps the teacher's vectors for further runs; None: the run's own, removed with it.
        distance: `cosine` or `squared`.
        side: role of the texts, for the prompts of both models: `text` (neither), `query` or `document`; without
            `base`.
        projection: learn W.
        fitted: rows of the first data set by which W starts as the ridge regression of the teacher's vectors on the
            encoder's embeddings; 0: W starts orthogonal. With `projection: false`, the encoder's own projection does.
        layers: numbers of layers of further students, each with its own W; "layer i" is the model truncated to i
            layers, final norm included. The last layer is trained only if it is among them. None: the last layer.
        dims: numbers of leading dimensions of students, likewise; None: all.
        base: an objective on the same texts, such as `contrastive`, whose loss is added for the last layer; its rows
            are read, and all their texts are distilled.
        base_weight: weight of the base's loss.
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
        self._teacher_vectors: TeacherVectors | None = None
        self._teacher_width = 0
        self._fitted: dict[Student, Tensor] = {}  # W at the start

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
        return replace(inputs, embed=partial(Encoder.layer_embeddings, num_layers=deepest))

    @property
    def skips_layers(self) -> bool:
        """With `layers`; a base reads the last one."""
        return self.layers is not None and self.base is None

    def setup(self, encoder: Encoder) -> None:
        """Check layers and dimensions; set up the base."""
        super().setup(encoder)
        for name, values, limit in (
            ("layers", self.layers, encoder.backbone.num_layers),
            ("dims", self.dims, encoder.pooled_dimensions),
        ):
            if values and max(values) > limit:
                raise ValueError(f"{name}={values}; give numbers from 1 to {limit}")
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
            vectors = dataset["vector"] if "vector" in dataset.column_names else []
            widths = {len(vector or []) for vector in vectors}
            if 0 in widths or len(widths | {self._teacher_width} - {0}) != 1:
                raise ValueError(
                    f"column vector holds {sorted(widths) or 'no'} dimensions; without objective.teacher, each row "
                    "needs text and vector, a list of numbers of one length"
                )
            self._teacher_width = widths.pop()
        elif folder is None:
            self._teacher_width = encoder.pooled_dimensions
            return dataset
        elif self._teacher_vectors is None:
            store = Path(expand(self.vectors)) if self.vectors else folder.parent / "teacher"
            self._teacher_vectors = TeacherVectors(expand(self.teacher), store)
            self._teacher_width = self._teacher_vectors.dimensions
        if not self.projection and self._teacher_width != encoder.pooled_dimensions:
            raise ValueError(
                f"projection=false compares {encoder.pooled_dimensions} dimensions with the teacher's "
                f"{self._teacher_width}; set encoder.pooling.projection: {self._teacher_width}, or leave out "
                "projection: false"
            )
        if self._teacher_vectors is not None:
            texts = self.inputs.strings(dataset.to_list())
            self._teacher_vectors.add({self._side(role): texts[role] for role in texts})
        pooling = encoder.settings.pooling
        learns = self.projection or (pooling.projection is not None and pooling.mode != "concat")
        if self.fitted and folder is not None and not self._fitted and learns:
            self._fit(dataset.select(range(min(self.fitted, len(dataset)))).to_list(), encoder)
        return dataset

    @torch.no_grad()
    def _fit(self, rows: list[DataRow], encoder: Encoder) -> None:
        """Start every W, or the encoder's projection, as a ridge regression."""
        students = self._students(encoder.pooled_dimensions if self.projection else encoder.backbone.hidden_size)
        batches = [self.collate(rows[start : start + FIT_ROWS], encoder) for start in range(0, len(rows), FIT_ROWS)]
        texts = [tokens for batch in batches for tokens in self.inputs.texts(batch).values()]
        targets = torch.cat([batch[f"{role}_teacher"] for batch in batches for role in self.inputs.texts(batch)])
        vectors = [embeddings_at_rest(encoder, texts, partial(self._plain, encoder, student)) for student in students]
        if self.projection:
            self._fitted = {student: ridge(inputs, targets) for student, inputs in zip(students, vectors, strict=True)}
            return
        self._fitted = {students[0]: ridge(torch.cat(vectors), targets.repeat(len(students), 1))}
        assert isinstance(encoder.head, Projection)
        encoder.head.weight.copy_(self._fitted[students[0]])

    def _plain(self, encoder: Encoder, student: Student, tokens: Tokens) -> Tensor:
        """Return what a W multiplies; without W, pooled states before the encoder's projection."""
        layers, dims = student
        if self.projection:
            pooled = encoder(tokens, num_layers=layers or None)  # through a head, if there is one
        else:
            states = encoder.backbone.hidden_states(tokens, encoder.attention, num_layers=layers or None)
            pooled = pool(encoder.settings.pooling, states, tokens)
        as_it_is = self.distance == "squared" and not self.projection
        return pooled if as_it_is else normalize(pooled[:, :dims], dim=-1)

    def learned(self, encoder: Encoder) -> dict[str, nn.Parameter]:
        """Return W of each student, `(teacher's dimensions, dimensions)`."""
        if self._teacher_vectors is not None:
            self._teacher_vectors.teacher = None  # all its vectors are there
        students = self._students(encoder.pooled_dimensions) if self.projection else []
        parameters = {}
        for student in students:
            fitted = self._fitted.get(student)
            weight = orthogonal(self._teacher_width, student.dims, seed=42) if fitted is None else fitted.clone()
            parameters[student.name] = nn.Parameter(weight.to(encoder.device))
        return parameters

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return the batch of the inputs, and the teacher's vectors of each role as `ROLE_teacher`."""
        batch = self.inputs.collate(rows, encoder, seed=seed)
        if self.teacher is None:
            vectors = torch.tensor([row["vector"] for row in rows], dtype=torch.float32)
            return {**batch, f"{self.side}_teacher": normalize(vectors.view(len(rows), self._teacher_width), dim=-1)}
        for role, texts in self.inputs.strings(rows).items():
            batch[f"{role}_teacher"] = (
                torch.zeros(len(texts), self._teacher_width)
                if self._teacher_vectors is None
                else self._teacher_vectors.vectors(self._side(role), texts)
            )
        return batch

    def _side(self, role: str) -> str:
        """Return how the teacher reads a role: texts that stand in both, for dropout, are neither."""
        return "text" if isinstance(self.inputs, RepeatedTexts) else role

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the number of distilled texts, and the counts of the base."""
        number = sum(len(part) for name, part in batch.items() if name.endswith("_teacher"))
        return {"texts": number, **({} if self.base is None else self.base.num_items(batch))}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the mean distance over students and texts, plus the weighted loss of the base; and the parts."""
        vectors = next(iter(embeddings.values()))
        weight = self.item_weights(batch, vectors.device)["texts"]
        distances: dict[str, Tensor] = {}
        for student in self._students(vectors.shape[-1]):
            by_role = [self._distance(student, role, embeddings[role], batch) for role in embeddings]
            distances[student.name] = torch.stack(by_role).sum() * weight
        loss = torch.stack(list(distances.values())).mean()
        if len(distances) > 1:
            parts = {name: distance.detach() for name, distance in distances.items()}
        else:
            parts = {"distance": loss.detach()}
        if self.base is None:
            return {"loss": loss, **parts}
        last = {role: vectors[-1] if self.layers else vectors for role, vectors in embeddings.items()}
        base = self.base.total(last, batch)
        return {**base, **parts, "loss": loss + self.base_weight * base["loss"], "base": base["loss"].detach()}

    def _distance(self, student: Student, role: str, vectors: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the distances of a student's texts of a role from their targets."""
        embedding = (vectors[student.layers - 1] if self.layers else vectors)[..., : student.dims]
        target = batch[f"{role}_teacher"]
        with full_float32(vectors.device.type), torch.autocast(vectors.device.type, enabled=False):
            s = embedding.float()
            if self.projection:
                s = linear(normalize(s, dim=-1), batch["learned"][student.name].float())
            if self.distance == "cosine":
                return (1 - (normalize(s, dim=-1) * target).sum(-1)).sum()
            return (s - target).square().sum(-1).sum()

    def _students(self, width: int) -> list[Student]:
        return [Student(layers, dims) for layers in self.layers or [0] for dims in self.dims or [width]]
