"""What an analysis returns, and the loop over its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from embrew.cli.console import loading


@dataclass
class Outcome:
    """Figures of an analysis.

    Attributes:
        models: an entry per model for the JSON file.
        rows: rows of the CSV file.
        table: rows of the printed table.
        plot: draws all models in one picture; None: there is nothing to draw.
        settings: further entries of the JSON file.
        lines: sentences below the table.
        title: of the table.
    """

    models: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    table: list[dict[str, Any]]
    plot: Callable[[Path], None] | None
    settings: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    title: str | None = None


class Examined(NamedTuple):
    """A model, the entry by which a file names it, and what was measured."""

    name: str
    entry: dict[str, Any]
    result: Any


def examine(
    models: Sequence[str], measure: Callable[[Any], Any], opener: Callable[[str], Any] | None = None
) -> list[Examined]:
    """Measure models one after the other; errors begin with a model's name."""
    from embrew.opening import open_model
    from embrew.text_encoder.hashes import model_hash

    examined = []
    for name in models:
        loading(name)
        encoder: Any = (opener or open_model)(name)
        try:
            result = measure(encoder)
            examined.append(Examined(name, {"model": name, "model_hash": model_hash(encoder)}, result))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return examined


def flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single values of an entry, those of mappings by both names."""
    row: dict[str, Any] = {}
    for name, value in entry.items():
        values = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
        row |= {key: each for key, each in values.items() if not isinstance(each, list | Mapping)}
    return row


def only(data: Sequence[str]) -> str:
    """Return the single value of --data."""
    if len(data) > 1:
        raise ValueError(f"--data is given {len(data)} times; this analysis takes one")
    return data[0]
