"""What a report is about, and what its sections give: JSON and variables of a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from embrew.plot_style import CYCLE, METHODS, colours
from embrew.report.comparison import Comparison

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.report.sources import ModelSource


Values = dict[str, Any]  # variables of a template, or an entry of the JSON file


class Components(TypedDict):
    """Coordinates on two principal components, float32 `(texts, 2)`, and their share of the variance."""

    points: np.ndarray
    variance: float


class VectorFigures(TypedDict, total=False):
    """Figures of an encoder's unit vectors; empty if there were no texts to encode.

    `map` has the components by task, and `missing` why a figure is not there, by its name.
    """

    texts: int
    missing: dict[str, str]
    map: dict[str, Components]
    spectrum: Values | None
    uniformity: float | None


@dataclass(frozen=True)
class NestedScores:
    """Scores of an encoder that was trained for several numbers of layers or dimensions, on one task.

    Attributes:
        layers: Numbers of layers; None: all.
        dims: Numbers of dimensions.
        scores: Scores (0 to 1) by layers and dimensions.
        milliseconds: Time to encode a text, by layers; empty where layers cannot be left out.
    """

    layers: Sequence[int | None]
    dims: Sequence[int]
    scores: Sequence[Sequence[float]]
    milliseconds: Sequence[float] = ()


@dataclass(frozen=True)
class EncoderCost:
    """What an encoder costs.

    Attributes:
        dimensions: Number of dimensions of a vector.
        texts: Number of texts that were timed.
        rounds: Number of rounds, of which the fastest counts.
        milliseconds: Time to encode a text; None: there was no text.
        nested: Scores by layers and dimensions; None: the encoder was trained for one size.
    """

    dimensions: int
    texts: int
    rounds: int
    milliseconds: float | None
    nested: NestedScores | None

    @property
    def bytes(self) -> int:
        """Size of a float32 vector."""
        return 4 * self.dimensions


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        comparison: Models and the tasks that they have alike; the first model is the base.
        data: Data folder of a task, by task name and split, only where its files are those of the results.
        without_data: Reason why data that were stored with results are not used, by task name and split.
        costs: Cost of each encoder by model; a model whose encoder is not known is missing.
        vectors: Figures of `measure_vectors` by model.
        sources: Folders and runs of each model, one per seed, by model.
        overlaps: Lines of `find_overlaps` by model; empty if overlaps were not looked for.
        command: The command that made the report.
    """

    comparison: Comparison
    data: Mapping[tuple[str, str], Task] = field(default_factory=dict)
    without_data: Mapping[tuple[str, str], str] = field(default_factory=dict)
    costs: Mapping[str, EncoderCost] = field(default_factory=dict)
    vectors: Mapping[str, VectorFigures] = field(default_factory=dict)
    sources: Mapping[str, Sequence[ModelSource]] = field(default_factory=dict)
    overlaps: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    command: str = ""

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [model.name for model in self.comparison.models]


class Section(NamedTuple):
    """A section of the report.

    Attributes:
        title: Heading.
        document: Entry of the JSON file; its keys are variables of the template too.
        values: Further variables of the template, whose charts are Vega-Lite.
        sentence: Sentence that is added to the verdict; empty if none.
    """

    title: str
    document: Values
    values: Mapping[str, Any] = {}
    sentence: str = ""


def model_colours(names: Sequence[str]) -> list[str]:
    """Return one colour per model: that of its method for the first model of a method, otherwise a free one.

    Up to 12 models have different colours; with more, colours repeat.
    """
    chosen = colours(names)
    others = [colour for colour in dict.fromkeys((*CYCLE, *METHODS.values())) if colour not in chosen]
    free = chain(others, cycle(CYCLE))
    return [next(free) if colour in chosen[:position] else colour for position, colour in enumerate(chosen)]
