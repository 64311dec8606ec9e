"""Measure the encoders of a report, one open at a time, and verify that they are those of the results."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from embrew.comparison import Model
from embrew.progress import progress, within
from embrew.report.cost import measure_cost
from embrew.report.sample import measure_vectors
from embrew.report.section import Subject
from embrew.report.sources import Source
from embrew.text_encoder.hashes import model_hash

logger = logging.getLogger(__name__)
Opener = Callable[[Source], Any]


class _NotUsable(ValueError):
    """An encoder whose folder was stored with the results, and no longer holds it; the message says why."""


def measure_models(subject: Subject, opener: Opener = Source.open) -> Subject:
    """Return the subject with costs and figures of vectors of the models whose encoder is models.

    The source of a model whose stored folder no longer holds the encoder of its results becomes the results alone.

    Raises:
        ValueError: an encoder that a user gave is not the one that the results are of.
    """
    sources, costs, vectors = dict(subject.sources), {}, {}
    models = [model for model in subject.comparison.models if subject.sources[model.name][0].model is not None]
    with progress(len(models), "measuring", "model", shown=bool(models)) as bar:
        for model in models:
            first, *others = subject.sources[model.name]
            try:
                with within(model.name):
                    encoder = _open(model, first, opener)
                    costs[model.name] = measure_cost(encoder, subject)
                    vectors[model.name] = measure_vectors(encoder, subject.data)
                    del encoder
                    gc.collect()
            except _NotUsable as error:
                sources[model.name] = (first.without_encoder(str(error)), *others)
            bar.update()
    return replace(subject, costs=costs, vectors=vectors, sources=sources)


def _open(model: Model, source: Source, opener: Opener) -> Any:
    """Return the encoder of a model's results."""
    logger.info("opening %s%s", source.model, f", which {source.results} names" if source.stored else "")
    try:
        with _without_downloads() if source.stored else nullcontext():
            encoder = opener(source)
    except (ImportError, OSError, ValueError) as error:
        if not source.stored:
            raise
        logger.warning("%s cannot be opened: %s", source.model, error)
        raise _NotUsable("cannot be opened") from error
    own = model_hash(encoder)
    expected = {str(scored.run["model_hash"]) for scored in model.seeds[0] if "model_hash" in scored.run}
    if expected - {own} and source.stored:
        raise _NotUsable("has another model hash than the results")
    if expected - {own}:
        raise ValueError(
            f"{source.model} is not the encoder of the results of {model.name}: its model hash is {own[:12]}, theirs "
            f"{', '.join(sorted(one[:12] for one in expected))}; give the encoder that was evaluated, or evaluate "
            "it again"
        )
    return encoder


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Read models of the Hub from the cache only: what a file in a folder of results names downloads nothing."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
