"""Geometry: how evenly a model's vectors spread, and how many dimensions they use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embrew.report.section import Section, Subject


def section(subject: Subject) -> Section | None:
    """Return the section; None if no encoder is known."""
    measured = {name: subject.vectors[name] for name in subject.names if subject.vectors.get(name)}
    if not measured:
        return None
    rows = {name: quantities(figures) for name, figures in measured.items()}
    document = {
        "models": {name: {key: figures[key] for key in figures if key != "map"} for name, figures in measured.items()},
        "not_measured": [name for name in subject.names if name not in measured],
    }
    values = {
        "names": subject.names,
        "rows": {
            quantity: [_cell(rows.get(name, {}).get(quantity)) for name in subject.names]
            for quantity in next(iter(rows.values()))
        },
        "missing": {name: figures["missing"] for name, figures in measured.items() if figures["missing"]},
        "texts": max(figures["texts"] for figures in measured.values()),
        "spectrum": [  # singular values of the covariance as shares, largest first
            {"model": name, "rank": rank, "share": float(f"{share:.4g}")}
            for name, figures in measured.items()
            if figures["spectrum"]
            for rank, share in zip(figures["spectrum"]["ranks"], figures["spectrum"]["shares"], strict=True)
            if share > 1e-9
        ],
    }
    return Section("Geometry", document, values)


def quantities(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the lines of the table for one model."""
    spectrum = figures["spectrum"] or {}
    energy = spectrum.get("energy_dimensions", {})
    return {
        "dimensions": spectrum.get("dimensions"),
        "dimensions with 90 % of the variance": energy.get("0.9"),
        "dimensions with 99 % of the variance": energy.get("0.99"),
        "participation ratio (dimensions)": spectrum.get("participation_ratio"),
        "RankMe (dimensions)": spectrum.get("rankme"),
        "uniformity": figures["uniformity"],
    }


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
