"""Charts of the report: Vega-Lite specifications, drawn in the browser."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

from embrew.plot_style import CYCLE, METHODS, colours


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        name: Id of its HTML element.
        spec: Vega-Lite specification, as JSON-serialisable data. Colours come from `embrew.plot_style`; those of text
            and background are left out, since the page sets them for light and dark.
        description: What it shows, in one sentence, for screen readers.
    """

    name: str
    spec: dict[str, Any]
    description: str

    @classmethod
    def of(cls, name: str, altair_chart: Any, description: str) -> "Chart":
        """Return a chart made with Altair."""
        return cls(name, altair_chart.to_dict(), description)


def model_colours(names: Sequence[str]) -> list[str]:
    """Return one colour per model: that of its method for the first model of a method, otherwise a free one.

    Up to 12 models have different colours; with more, colours repeat.
    """
    own = colours(names)
    unused = [colour for colour in dict.fromkeys((*CYCLE, *METHODS.values())) if colour not in own]
    free = chain(unused, cycle(CYCLE))
    return [next(free) if colour in own[:position] else colour for position, colour in enumerate(own)]
