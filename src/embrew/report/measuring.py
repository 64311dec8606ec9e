"""Run the measurements of all sections on the encoders, one open at a time; results are kept."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
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


class _NotUsable(ValueError):
    """An encoder whose folder was stored with the results, and no longer holds it; the message says why."""


def measured(subject: Subject, cache: Cache, opener: Opener = Source.open) -> Subject:
    """Return the subject with what the sections measure of the models whose encoder is known.

    The source of a model whose stored folder no longer holds the encoder of its results becomes the results alone.

    Raises:
        ValueError: an encoder that a user gave is not the one that the results are of.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in MEASURES}
    sources = dict(subject.sources)
    known = [(model, subject.sources[model.name][0]) for model in subject.comparison.models]
    known = [(model, source) for model, source in known if source.model is not None]
    missing = {model.name: _missing(subject, source, cache) for model, source in known}
    with progress(sum(map(bool, missing.values())), "measuring", "model", shown=any(missing.values()) or False) as bar:
        for model, source in known:
            try:
                with within(model.name):
                    values = _of_model(model, source, subject, cache, missing[model.name], opener)
            except _NotUsable as error:
                sources[model.name] = (source.without_encoder(str(error)), *subject.sources[model.name][1:])
                values = {}
            for name, value in values.items():
                found[name][model.name] = value
            bar.update(bool(missing[model.name]))
    return replace(subject, measured=found, sources=sources)


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
        logger.info("opening %s%s", source.model, f", which {source.results} names" if source.stored else "")
        encoder = _open(source, opener)
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


def _open(source: Source, opener: Opener) -> Any:
    try:
        with _without_downloads() if source.stored else nullcontext():
            return opener(source)
    except (ImportError, OSError, ValueError) as error:
        if not source.stored:
            raise
        logger.warning("%s cannot be opened: %s", source.model, error)
        raise _NotUsable("cannot be opened") from error


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Read models of the Hub from the cache only: what a file in a folder of results names downloads nothing."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _check_hash(model: Model, source: Source, found: str) -> None:
    expected = {str(scored.run["model_hash"]) for scored in model.seeds[0] if "model_hash" in scored.run}
    if expected - {found} and source.stored:
        raise _NotUsable("has another model hash than the results")
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
