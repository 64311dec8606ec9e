"""A section of the report: what its template shows, and the same numbers for JSON and CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


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
        values: Variables of the template; charts are `Chart`.
        document: What the JSON file holds under `name`.
        figures: Lines of the CSV file.
        sentence: What it adds to the verdict; empty if nothing.
    """

    name: str
    title: str
    values: Mapping[str, Any]
    document: Mapping[str, Any]
    figures: Sequence[Figure] = field(default=())
    sentence: str = ""
