"""Quality against cost: scores of an encoder truncated to several numbers of layers and dimensions.

    score(l, d) = mean over the tasks of the main score of the encoder with l layers and d dimensions
    pick(share) = cell with the smallest l · d whose score is at least share · score(all layers, all dimensions)

Source: *Espresso Sentence Embeddings* (arXiv 2402.14776), which trains encoders that can be truncated in depth and in
width, and shows their scores as a surface over both (Fig. 3). Every cell here equals `evaluate` of the truncated
encoder (`embrew.cutting.cut`), but all cells share one forward pass per text.

Full and truncated vectors in one t-SNE embedding show the distance by which truncation moves a text:

    distance = mean over texts of ‖p(x) − p(x′)‖
    share    = distance / mean over pairs of texts of ‖p(x) − p(y)‖

with p the points of t-SNE, and x′ the vector x of which only the first dimensions are kept. Source: Fig. 7 of the same
paper: t-SNE of the vectors of the STS-B test set at all dimensions and at 128, and the mean distance between the two
points of a text. The paper does not say how vectors of two widths are embedded together; here truncated vectors are
padded with zeros.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.encoder import Encoder
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.results import size_of
from embrew.evaluation.runs import prepare
from embrew.evaluation.task import Task
from embrew.machine import total_and_free
from embrew.model.batching import encode_rows
from embrew.ranking import sample_in_order
from embrew.text.template import Template
from embrew.text.tokens import Tokens
from embrew.text_encoder import encode_options, unit_vectors

logger = logging.getLogger(__name__)
LAST = 12  # number of last layers in the paper
DIMS = (8, 16, 32, 64, 128, 256, 512)
SAMPLE, ROUNDS = 64, 5  # number of texts that are timed, and of rounds
SHARE = 0.5  # share of the free memory that vectors may take
PERPLEXITY = 30


@dataclass(frozen=True)
class Cell:
    """An encoder truncated to `layers` layers and `dim` dimensions.

    Attributes:
        score: mean of the main scores over the tasks, 0 to 1.
        kept: share of the full encoder's score.
        milliseconds: time to encode one text.
        bytes: size of a float32 vector.
    """

    layers: int
    dim: int
    score: float
    kept: float
    milliseconds: float
    bytes: int


@dataclass(frozen=True)
class Surface:
    """Scores by layers and dimensions; the last of each is the full encoder's.

    Attributes:
        scores: main scores, 0 to 1, `(tasks, layers, dims)`.
        milliseconds: time to encode one text, by layer.
        texts: number of encoded texts.
        sizes: size of each task, such as `1379 pairs`.
    """

    layers: tuple[int, ...]
    dims: tuple[int, ...]
    tasks: tuple[Task, ...] = field(repr=False)
    scores: np.ndarray
    milliseconds: tuple[float, ...]
    texts: int
    sizes: tuple[str, ...]

    @property
    def means(self) -> np.ndarray:
        """Mean score over the tasks, `(layers, dims)`."""
        return np.asarray(self.scores.mean(0))

    @property
    def cells(self) -> list[Cell]:
        """All cells, layer by layer; the last is the full encoder."""
        means = self.means
        return [
            Cell(layer, dim, float(means[i, j]), float(means[i, j] / means[-1, -1]), self.milliseconds[i], 4 * dim)
            for i, layer in enumerate(self.layers)
            for j, dim in enumerate(self.dims)
        ]

    def pick(self, share: float) -> Cell:
        """Return the cheapest cell with at least `share` of the full encoder's score, above 0 and up to 1.

        The cheapest has the smallest product of layers and dimensions, so that half the time counts as much as half
        the bytes; of several, the one with fewer layers. Layers represent time because they do not depend on other
        load on the machine.

        Raises:
            ValueError: the full encoder scores 0 or less.
        """
        cells = self.cells
        full = cells[-1].score
        if full <= 0:
            raise ValueError(f"the full encoder scores {full:.4f}; a share of a score needs one above 0")
        enough = [cell for cell in cells if cell.score >= share * full]
        return min(enough, key=lambda cell: (cell.layers * cell.dim, cell.layers))

    def pareto(self) -> list[Cell]:
        """Return the Pareto front: cells for which no other with as few layers and dimensions scores as high."""
        means = self.means
        alone = [(means[: i + 1, : j + 1] >= means[i, j]).sum() == 1 for i, j in np.ndindex(means.shape)]
        return [cell for cell, is_alone in zip(self.cells, alone, strict=True) if is_alone]

    def shallow_average(self, dim: int | None = None) -> float | None:
        """Return ≺Avg of *Espresso Sentence Embeddings*: the mean STS score over the shallow layers.

        Shallow layers are the last 12 without the last (all but the last if there are fewer than 12). The paper uses
        all dimensions; `dim` uses fewer. None if no task is STS, or not all shallow layers are scored.
        """
        sts = [i for i, task in enumerate(self.tasks) if task.kind == "sts"]
        shallow = range(max(1, self.layers[-1] - LAST + 1), self.layers[-1])
        if not sts or not shallow or not set(shallow) <= set(self.layers):
            return None
        rows = [self.layers.index(layer) for layer in shallow]
        return float(self.scores[sts][:, rows, self.dims.index(dim or self.dims[-1])].mean())

    def summary(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        tasks = [
            {"task": task.name, "split": task.split, "size": size, "kind": task.kind, "scores": scores.tolist()}
            for task, size, scores in zip(self.tasks, self.sizes, self.scores, strict=True)
        ]
        return {
            "layers": list(self.layers),
            "dims": list(self.dims),
            "texts": self.texts,
            "tasks": tasks,
            "scores": self.means.tolist(),
            "milliseconds": list(self.milliseconds),
            "bytes": [4 * dim for dim in self.dims],
            "shallow_average": {str(dim): self.shallow_average(dim) for dim in self.dims},
            "pareto": [vars(cell) for cell in self.pareto()],
        }


def surface_of(
    encoder: Encoder,
    tasks: Sequence[Task],
    *,
    layers: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> Surface:
    """Score every cell of layers × dimensions with one forward pass per text, and time every layer.

    Args:
        encoder: a causal LM or BERT-type encoder with any pooling.
        tasks: tasks to evaluate (`embrew.evaluation.find_task`).
        layers: numbers of layers; default: the last 12. The last layer is always included.
        dims: numbers of dimensions; default: 8, 16, 32, …. The full number is always included.
        batch_tokens: padded tokens per batch.
        show_progress_bar: show progress bars.

    Raises:
        ValueError: the encoder lacks layers or dimensions or is not an `Encoder`, or vectors exceed half of the free
            memory.

    Examples:
        >>> surface = surface_of(encoder, [find_task("STSB")], dims=[64, 128])  # doctest: +SKIP
        >>> surface.pick(0.98)  # doctest: +SKIP
        Cell(layers=4, dim=128, score=0.7514, kept=0.9821, milliseconds=1.9, bytes=512)
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(
            f"a {type(encoder).__name__} returns its last layer only; open its transformer by a recipe, as "
            "baselines/all-minilm-l6-v2 does"
        )
    depth, width = encoder.backbone.num_layers, encoder.get_embedding_dimension()
    rows = _axis("layers", layers or range(max(1, depth - LAST + 1), depth + 1), depth)
    columns = _axis("dims", dims or [dim for dim in DIMS if dim < width], width)
    for task in tasks:
        if KINDS[task.kind].grid:
            raise ValueError(
                f"task {task.name}: {task.kind} has its own settings {' and '.join(KINDS[task.kind].grid)}; list "
                "them in a suite instead"
            )
    truncated = TruncatedEncoder(encoder, rows, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    options = encode_options(encoder)
    scores, sizes = np.zeros((len(tasks), len(rows), len(columns))), []
    for number, evaluate in enumerate([prepare(task) for task in tasks]):
        for i, j in np.ndindex(len(rows), len(columns)):
            truncated.layer, truncated.dim = i, columns[j]
            values = evaluate(truncated, options)
            scores[number, i, j] = values["main_score"]
        sizes.append(size_of(values["counts"]))
    milliseconds = milliseconds_of(encoder, truncated.texts, rows, batch_tokens=batch_tokens)
    return Surface(rows, columns, tuple(tasks), scores, tuple(milliseconds), len(truncated.texts), tuple(sizes))


def _axis(name: str, numbers: Sequence[int], maximum: int) -> tuple[int, ...]:
    wrong = [number for number in numbers if not 1 <= number <= maximum]
    if wrong:
        raise ValueError(f"{name}: {', '.join(map(str, wrong))}; this encoder has 1 to {maximum}")
    return tuple(sorted({*numbers, maximum}))


class TruncatedEncoder:
    """The encode methods of an encoder truncated to a layer and dimensions; each list of texts is encoded once.

    Attributes:
        layer: index in `layers` of the number of layers.
        dim: number of dimensions.
        texts: all texts encoded so far.

    Args:
        encoder: the encoder.
        layers: numbers of layers to keep vectors of.
        batch_tokens: padded tokens per batch.
        show_progress_bar: show one progress bar per list of texts.
    """

    def __init__(
        self, encoder: Encoder, layers: Sequence[int], *, batch_tokens: int | None, show_progress_bar: bool
    ) -> None:
        self.encoder, self.layers = encoder.eval(), list(layers)
        self.max_length, self.prompts = encoder.max_length, encoder.prompts
        self.batch_tokens, self.show_progress_bar = batch_tokens, show_progress_bar
        self.layer = self.dim = 0
        self.texts: list[str] = []
        self._vectors: dict[tuple[str, int, str], Tensor] = {}

    def encode(
        self,
        inputs: Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        max_length: int | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Return vectors of texts, `(texts, dimensions)`."""
        limit = max_length or self.encoder.max_seq_length
        instruction = self.encoder.instruction(prompt_name, prompt)
        call = instruction, limit, hashlib.sha256("\0".join(inputs).encode()).hexdigest()
        if call not in self._vectors:
            self.texts += inputs
            self._check_size()
            self._vectors[call] = self._encode(inputs, instruction, limit)
        vectors = self._vectors[call][:, self.layer, : self.dim].contiguous()
        return (normalize(vectors, dim=-1) if self.encoder.normalize else vectors).numpy()

    def encode_query(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        """Return vectors of queries, with the encoder's prompt and limit."""
        return Encoder.encode_query(self, inputs, *args, **options)  # type: ignore[arg-type]

    def encode_document(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        """Return vectors of documents, with the encoder's prompt and limit."""
        return Encoder.encode_document(self, inputs, *args, **options)  # type: ignore[arg-type]

    def _check_size(self) -> None:
        """Raise if the vectors of all texts so far, 4 bytes × layers × texts × dimensions, are too many."""
        layers, texts, dims = len(self.layers), len(self.texts), self.encoder.get_embedding_dimension()
        size, free = 4 * layers * texts * dims, total_and_free()[1]
        what = f"{layers} layers × {texts:,} texts × {dims} dimensions in float32: {size / 1e9:.2f} GB"
        logger.info("%s are kept in memory", what)
        if free is not None and size > SHARE * free:
            raise ValueError(
                f"{what}, and {SHARE * free / 1e9:.2f} GB are allowed, half of the free memory; choose fewer layers "
                "(--layers), or less data (--data; a suite's documents: judged takes a sample of a corpus)"
            )

    def _encode(self, texts: Sequence[str], instruction: str, limit: int) -> Tensor:
        """Return float32 vectors `(texts, layers, dimensions)`: the mean over templates, not normalised."""
        encoder, width = self.encoder, self.encoder.get_embedding_dimension()
        chosen = [layer - 1 for layer in self.layers]

        def embed(tokens: Tokens, _: int) -> Tensor:
            pooled = encoder.layer_embeddings(tokens.to(encoder.device))[chosen, :, :width]
            return pooled.transpose(0, 1).flatten(1)

        def vectors(template: Template) -> Tensor:
            return encode_rows(
                lambda start, stop: template.rows(
                    texts[start:stop], instruction=instruction, max_length=limit, first=start
                ),
                len(texts),
                embed,
                len(chosen) * width,
                batch_size=32,
                tokenize_ahead=encoder.device.type != "cpu",
                batch_tokens=self.batch_tokens,
                show_progress_bar=self.show_progress_bar,
            ).div_(len(encoder.templates))

        with torch.inference_mode():
            total = sum(map(vectors, encoder.templates[1:]), start=vectors(encoder.templates[0]))
        return total.view(len(texts), len(chosen), width)


def milliseconds_of(
    encoder: Encoder, texts: Sequence[str], layers: Sequence[int], *, batch_tokens: int | None = None
) -> list[float]:
    """Return milliseconds per text of `encode` at each number of layers: the median over rounds on 64 of the texts.

    Layers alternate within a round, so that other load on the machine affects all of them.
    """
    sample = sample_in_order(texts, SAMPLE, seed=42)
    seconds: dict[int, list[float]] = {layer: [] for layer in layers}
    for number in range(ROUNDS + 1):
        for layer, measured in seconds.items():
            start = time.perf_counter()
            encoder.encode(
                sample, num_layers=layer, batch_size=len(sample), batch_tokens=batch_tokens, show_progress_bar=False
            )
            if number:  # the first round is a warm-up
                measured.append(time.perf_counter() - start)
    return [1000 * statistics.median(measured) / len(sample) for measured in seconds.values()]


@dataclass(frozen=True)
class Truncation:
    """Points of each text in the plane, of its full and its truncated vector.

    Attributes:
        full: points of full vectors, `(texts, 2)`.
        truncated: points of truncated vectors, `(texts, 2)`.
        dim: number of dimensions of the truncated vectors.
        width: number of dimensions of the full vectors.
    """

    full: np.ndarray
    truncated: np.ndarray
    dim: int
    width: int

    @property
    def distance(self) -> float:
        """Mean distance between the two points of a text."""
        return float(np.linalg.norm(self.full - self.truncated, axis=1).mean())

    @property
    def share(self) -> float:
        """`distance` as a share of the mean distance between different texts, since t-SNE has no unit."""
        from scipy.spatial.distance import pdist

        return self.distance / float(pdist(self.full).mean())

    def summary(self) -> dict[str, float]:
        """Return the figures, for JSON."""
        return {"dim": self.dim, "texts": len(self.full), "distance": self.distance, "distance_share": self.share}


def truncation_of(vectors: np.ndarray, dim: int, *, seed: int = 42) -> Truncation:
    """Embed vectors and their truncations together in the plane with scikit-learn's t-SNE.

    Args:
        vectors: `(texts, dimensions)`; full and truncated vectors are normalised.
        dim: number of leading dimensions to keep; the others are zero.
        seed: random seed of t-SNE, which is initialised with the principal components.

    Raises:
        ValueError: `dim` is not below the width, or there are too few texts for the perplexity.
    """
    from sklearn.manifold import TSNE

    count, width = vectors.shape
    if not 1 <= dim < width:
        raise ValueError(f"dim={dim}; vectors of {width} dimensions can be truncated to 1 to {width - 1}")
    if 2 * count <= PERPLEXITY:
        raise ValueError(f"{count} texts for perplexity {PERPLEXITY:g}; give more than {PERPLEXITY / 2:g}")
    truncated = np.where(np.arange(width) < dim, vectors, 0)
    both = np.concatenate([unit_vectors(vectors, what="texts"), unit_vectors(truncated, what="texts")])
    points = TSNE(perplexity=PERPLEXITY, random_state=seed, init="pca").fit_transform(both)
    return Truncation(points[:count], points[count:], dim, width)
