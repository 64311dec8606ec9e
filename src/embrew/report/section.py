"""What a report is about, and what its sections give: variables of a template, and numbers for JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from embrew.comparison import Comparison
from embrew.plot_style import CYCLE, METHODS, colours

if TYPE_CHECKING:
    import altair as alt

    from embrew.evaluation.task import Task
    from embrew.report.sources import Source


class Overlaps(NamedTuple):
    """Lines about training rows that hold a text of a task, and about data that could not be checked, with reasons."""

    found: tuple[str, ...]
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        comparison: Models and the tasks that they have alike; the first model is the base.
        data: Data folder of a task, by task name and split, only where its files are those of the results.
        without_data: Why the data that were stored with the results of a task are not used, by task name and split.
        costs: What `measure_cost` returned, by model; a model whose encoder is not known is missing.
        vectors: What `measure_vectors` returned, by model.
        sources: Folders and runs of each model, one per seed, by model.
        overlaps: Texts of the tasks among the training rows, by model; empty if they were not looked for.
        command: The command that made the report.
    """

    comparison: Comparison
    data: Mapping[tuple[str, str], Task] = field(default_factory=dict)
    without_data: Mapping[tuple[str, str], str] = field(default_factory=dict)
    costs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    vectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    overlaps: Mapping[str, Overlaps] = field(default_factory=dict)
    command: str = ""

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [model.name for model in self.comparison.models]


class Figure(NamedTuple):
    """One number of the report, a line of its CSV file.

    Attributes:
        section: Name of the section.
        model: Name of the model.
        quantity: What was measured, with its unit, such as `score` (0 to 1) or `ms per text`.
        value: The number.
        task: Task with split and size; empty if the number belongs to none.
        low: Lower end of the 95 % interval, if there is one.
        high: Upper end.
    """

    section: str
    model: str
    quantity: str
    value: float
    task: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Attributes:
        name: Key in the JSON file, id of the HTML element, and name of its template, `page/sections/NAME.html`.
        title: Heading.
        values: Variables of the template; charts are `VegaChart`.
        document: What the JSON file holds under `name`.
        figures: Lines of the CSV file.
        sentence: What it adds to the verdict; empty if nothing.
    """

    name: str
    title: str
    values: Mapping[str, Any]
    document: Mapping[str, Any]
    figures: Sequence[Figure] = ()
    sentence: str = ""


@dataclass(frozen=True)
class VegaChart:
    """A chart that the browser draws.

    Attributes:
        name: Id of its HTML element.
        spec: Vega-Lite specification. Colours come from `embrew.plot_style`; those of text and background are left out,
            since the page sets them for light and dark.
        description: What it shows, in one sentence, for screen readers.
    """

    name: str
    spec: dict[str, Any]
    description: str


def model_colours(names: Sequence[str]) -> list[str]:
    """Return one colour per model: that of its method for the first model of a method, otherwise a free one.

    Up to 12 models have different colours; with more, colours repeat.
    """
    own = colours(names)
    unused = [colour for colour in dict.fromkeys((*CYCLE, *METHODS.values())) if colour not in own]
    free = chain(unused, cycle(CYCLE))
    return [next(free) if colour in own[:position] else colour for position, colour in enumerate(own)]


def colour_by_model(names: Sequence[str]) -> alt.Color:
    """Return the encoding with one colour per model, the same in all charts."""
    import altair as alt

    return alt.Color("model:N", title=None, scale=alt.Scale(domain=list(names), range=model_colours(names)))
