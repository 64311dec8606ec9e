"""Run the measurements of all sections on the encoders, one open at a time; results are kept."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embrew.comparison import Model
from embrew.files.checksums import content_hash
from embrew.progress import progress, within
from embrew.report.cache import Cache
from embrew.report.sections import SECTIONS
from embrew.report.source import Source
from embrew.report.subject import Subject
from embrew.report.task_data import identity
from embrew.text_encoder.hashes import model_hash
from embrew.text_encoder.provenance import versions

logger = logging.getLogger(__name__)
MEASURES = {name: module for name, module in SECTIONS.items() if hasattr(module, "measure")}
Opener = Callable[[Source], Any]


def measured(subject: Subject, cache: Cache, opener: Opener = Source.open) -> dict[str, dict[str, Any]]:
    """Return what the sections measure, by section and model, of the models whose encoder is known.

    Raises:
        ValueError: an encoder is not the one that the results are of.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in MEASURES}
    known = [(model, subject.sources[model.name][0]) for model in subject.comparison.models]
    known = [(model, source) for model, source in known if source.model is not None]
    missing = {model.name: _missing(subject, source, cache) for model, source in known}
    with progress(sum(map(bool, missing.values())), "measuring", "model", shown=any(missing.values()) or False) as bar:
        for model, source in known:
            with within(model.name):
                values = _of_model(model, source, subject, cache, missing[model.name], opener)
            for name, value in values.items():
                found[name][model.name] = value
            bar.update(bool(missing[model.name]))
    return found


def needs_encoders(subject: Subject, cache: Cache) -> bool:
    """Return whether a measurement is missing for a model whose encoder is known."""
    sources = [subject.sources[model.name][0] for model in subject.comparison.models]
    return any(_missing(subject, source, cache) for source in sources if source.model is not None)


def _missing(subject: Subject, source: Source, cache: Cache) -> list[str]:
    return [name for name in MEASURES if cache.get(_key(name, source, subject)) is None]


def _of_model(
    model: Model, source: Source, subject: Subject, cache: Cache, missing: list[str], opener: Opener
) -> Mapping[str, Any]:
    if missing:
        logger.info("opening %s", source.model)
        encoder = opener(source)
        own = model_hash(encoder)
        _check_hash(model, source, own)
        for name in missing:
            value = MEASURES[name].measure(encoder, subject)
            cache.put(_key(name, source, subject), {"model_hash": own, "value": value})
        del encoder
        gc.collect()
    kept = {name: cache.get(_key(name, source, subject)) for name in MEASURES}
    for entry in kept.values():
        _check_hash(model, source, entry["model_hash"])
    return {name: entry["value"] for name, entry in kept.items()}


def _check_hash(model: Model, source: Source, found: str) -> None:
    expected = {str(scored.run["model_hash"]) for scored in model.seeds[0] if "model_hash" in scored.run}
    if expected - {found}:
        raise ValueError(
            f"{source.model} is not the encoder of the results of {model.name}: its model hash is {found[:12]}, theirs "
            f"{', '.join(sorted(one[:12] for one in expected))}; give the encoder that was evaluated, or evaluate "
            "it again"
        )


def _key(name: str, source: Source, subject: Subject) -> list[Any]:
    """Return everything that a measurement depends on: code, encoder, data, versions."""
    data = [identity(task) for task in subject.data.values()]
    return ["measured", name, _code(), source.fingerprint(), data, versions()]


@functools.cache
def _code() -> str:
    """Return the hash of this package."""
    return content_hash(sorted(Path(__file__).parent.rglob("*.py")))
