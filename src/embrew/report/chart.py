"""Charts of the report: Vega-Lite specifications, drawn in the browser."""

from dataclasses import dataclass
from typing import Any


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
