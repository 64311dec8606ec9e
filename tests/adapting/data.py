"""Prepare data from paths, with the defaults or overrides of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embrew.adapting.defaults import read_defaults
from embrew.adapting.preparation import prepare as preparing
from embrew.adapting.preparation.prepare import Prepared
from embrew.adapting.preparation.sources import data_source


def prepare(
    docs: Path | None, pairs: Path | None, folder: Path, *, overrides: Sequence[str] = (), max_chars: int = 600
) -> Prepared:
    """Return the prepared data of paths."""
    documents = None if docs is None else data_source(docs, "documents")
    examples = None if pairs is None else data_source(pairs, "pairs")
    defaults = read_defaults([*overrides, f"adapt.max_chars={max_chars}"])
    return preparing.prepare_data(documents, examples, folder, defaults=defaults)
