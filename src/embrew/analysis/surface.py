"""Quality against cost: scores of an encoder truncated to several numbers of layers and dimensions.

*Espresso Sentence Embeddings* (arXiv 2402.14776) trains encoders that can be truncated in depth and in width, and shows
their scores as a surface over both (Fig. 3). Every cell here equals `evaluate` of the truncated encoder
(`embrew.cutting.cut`), but all cells share one forward pass per text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embrew.evaluation.task import Task

LAST = 12  # number of last layers in the paper


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
    sizes: tuple[str, ...] = ()

    @property
    def named(self) -> list[str]:
        """Names of the tasks with their splits and sizes."""
        sizes = self.sizes or ("size unknown",) * len(self.tasks)
        return [f"{task.name} {task.shown_split}, {size}" for task, size in zip(self.tasks, sizes, strict=True)]

    @property
    def depth(self) -> int:
        """Number of layers of the full encoder."""
        return self.layers[-1]

    @property
    def means(self) -> np.ndarray:
        """Mean score over the tasks, `(layers, dims)`."""
        mean: np.ndarray = self.scores.mean(0)
        return mean

    @property
    def cells(self) -> list[Cell]:
        """All cells, layer by layer."""
        means = self.means
        whole = means[-1, -1]
        return [
            Cell(layer, dim, float(means[i, j]), float(means[i, j] / whole), self.milliseconds[i], 4 * dim)
            for i, layer in enumerate(self.layers)
            for j, dim in enumerate(self.dims)
        ]

    @property
    def whole(self) -> Cell:
        """The cell of the full encoder."""
        return self.cells[-1]

    def pick(self, share: float) -> Cell:
        """Return the cheapest cell with at least `share` of the full encoder's score.

        The cheapest has the smallest product of layers and dimensions, so that half the time counts as much as half
        the bytes; of several, the one with fewer layers. Layers represent time because they do not depend on other
        load on the machine.

        Raises:
            ValueError: an invalid share, or the full encoder scores 0 or less.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share={share:g}; give a share of the full encoder's score above 0, up to 1")
        if self.whole.score <= 0:
            raise ValueError(f"the full encoder scores {self.whole.score:.4f}; a share of a score needs one above 0")
        enough = [cell for cell in self.cells if cell.score >= share * self.whole.score]
        return min(enough, key=lambda cell: (cell.layers * cell.dim, cell.layers))

    def pareto(self) -> list[Cell]:
        """Return the Pareto front: cells for which no other with as few layers and dimensions scores as high."""
        cells = self.cells
        return [
            cell
            for cell in cells
            if not any(
                (other.layers, other.dim) != (cell.layers, cell.dim)
                and other.layers <= cell.layers
                and other.dim <= cell.dim
                and other.score >= cell.score
                for other in cells
            )
        ]

    def shallow_average(self, dim: int | None = None) -> float | None:
        """Return ≺Avg of *Espresso Sentence Embeddings*: the mean STS score over the shallow layers.

        Shallow layers are the last 12 without the last (all but the last if there are fewer than 12). The paper uses
        all dimensions; `dim` uses fewer. None if no task is STS, or not all shallow layers are scored.
        """
        sts = [i for i, task in enumerate(self.tasks) if task.kind == "sts"]
        wanted = range(max(1, self.depth - LAST + 1), self.depth)
        if not sts or not wanted or not set(wanted) <= set(self.layers):
            return None
        rows = [self.layers.index(layer) for layer in wanted]
        return float(self.scores[sts][:, rows, self.dims.index(dim or self.dims[-1])].mean())

    def summary(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "layers": list(self.layers),
            "dims": list(self.dims),
            "texts": self.texts,
            "tasks": [
                {"task": task.name, "split": task.split, "size": size, "kind": task.kind, "scores": scores.tolist()}
                for task, size, scores in zip(
                    self.tasks, self.sizes or (None,) * len(self.tasks), self.scores, strict=True
                )
            ],
            "scores": self.means.tolist(),
            "milliseconds": list(self.milliseconds),
            "bytes": [4 * dim for dim in self.dims],
            "shallow_average": {str(dim): self.shallow_average(dim) for dim in self.dims},
            "pareto": [vars(cell) for cell in self.pareto()],
        }


def read_share(text: str) -> float:
    """Parse a share such as `≥ 98 %`, `>=98%`, `98%` or `0.98`.

    >>> read_share("≥ 98 %")
    0.98
    """
    bare = text.replace(" ", "").removeprefix("≥").removeprefix(">=")
    number, percent = bare.removesuffix("%"), bare.endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f'{text!r} is not a share of the full score; write "≥ 98 %", or 0.98')
    return share


def read_numbers(text: str) -> list[int]:
    """Parse numbers such as `4,8,12` or `1-6,12`.

    >>> read_numbers("1-3,6")
    [1, 2, 3, 6]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a list of numbers; write 4,8,12 or 1-6,12")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found
