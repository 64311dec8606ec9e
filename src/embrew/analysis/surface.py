"""Quality against cost: the score of an encoder cut to each of several layers and dimensions.

*Espresso Sentence Embeddings* (arXiv 2402.14776) trains encoders that can be cut in depth and in width, and shows their
scores as a surface over both (Fig. 3). Every cell here equals `evaluate` of the encoder that is really cut to it
(`embrew.modeling.cutting.cut`), but all of them come from one pass over the texts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embrew.evaluation.task import Task

LAST = 12  # layers that the paper looks at, counted from the end


@dataclass(frozen=True)
class Cell:
    """An encoder cut to `layers` and `dim`.

    Attributes:
        score: mean of the main scores over the tasks, 0 to 1.
        kept: share of the whole encoder's score.
        milliseconds: time to encode a text.
        bytes: of a vector in float32.
    """

    layers: int
    dim: int
    score: float
    kept: float
    milliseconds: float
    bytes: int


@dataclass(frozen=True)
class Surface:
    """Scores over layers and dimensions; the last of each is the whole encoder's.

    Attributes:
        scores: main scores, 0 to 1, `(tasks, layers, dims)`.
        milliseconds: time to encode a text, a layer.
        texts: how many texts were encoded.
        sizes: how much each task holds, in words.
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
        """The tasks with their splits and sizes."""
        sizes = self.sizes or ("size unknown",) * len(self.tasks)
        return [f"{task.name} {task.shown_split}, {size}" for task, size in zip(self.tasks, sizes, strict=True)]

    @property
    def depth(self) -> int:
        """Layers of the whole encoder."""
        return self.layers[-1]

    @property
    def means(self) -> np.ndarray:
        """Mean over the tasks, `(layers, dims)`."""
        mean: np.ndarray = self.scores.mean(0)
        return mean

    @property
    def cells(self) -> list[Cell]:
        """Every cell, layer by layer."""
        means = self.means
        whole = means[-1, -1]
        return [
            Cell(layer, dim, float(means[i, j]), float(means[i, j] / whole), self.milliseconds[i], 4 * dim)
            for i, layer in enumerate(self.layers)
            for j, dim in enumerate(self.dims)
        ]

    @property
    def whole(self) -> Cell:
        """The encoder as it is."""
        return self.cells[-1]

    def pick(self, share: float) -> Cell:
        """The cheapest cell that keeps `share` of the whole encoder's score.

        Cheapest: the smallest product of layers and dimensions, so that half the time counts as much as half the
        bytes; of equals the one with fewer layers. Layers stand for time because they do not depend on what else the
        machine did meanwhile.

        Raises:
            ValueError: a share that is none, or a whole encoder that scores 0 or less.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share={share:g}; it is a share of the whole encoder's score: above 0, at most 1")
        if self.whole.score <= 0:
            raise ValueError(f"the whole encoder scores {self.whole.score:.4f}, of which nothing can be kept")
        enough = [cell for cell in self.cells if cell.score >= share * self.whole.score]
        return min(enough, key=lambda cell: (cell.layers * cell.dim, cell.layers))

    def pareto(self) -> list[Cell]:
        """Cells that no other one beats: none with as few layers and dimensions scores as high."""
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
        """≺Avg of *Espresso Sentence Embeddings*: the mean STS score of each shallow layer, averaged over them.

        Shallow are the last 12 layers without the last (all but the last where there are fewer than 12). The paper
        takes all dimensions; `dim` takes fewer. None where no task is STS, or not all shallow layers were scored.
        """
        sts = [i for i, task in enumerate(self.tasks) if task.kind == "sts"]
        wanted = range(max(1, self.depth - LAST + 1), self.depth)
        if not sts or not wanted or not set(wanted) <= set(self.layers):
            return None
        rows = [self.layers.index(layer) for layer in wanted]
        return float(self.scores[sts][:, rows, self.dims.index(dim or self.dims[-1])].mean())

    def summary(self) -> dict[str, Any]:
        """All of it, JSON-able."""
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
    """A share from `≥ 98 %`, `>=98%`, `98%` or `0.98`.

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
        raise ValueError(f'{text!r} is no share of the whole score; write "≥ 98 %", or 0.98')
    return share


def read_numbers(text: str) -> list[int]:
    """Numbers from `4,8,12` or `1-6,12`.

    >>> read_numbers("1-3,6")
    [1, 2, 3, 6]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} are no numbers; write them as 4,8,12 or 1-6,12")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found
