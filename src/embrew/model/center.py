"""The mean and principal components of training texts' vectors, which an encoder then subtracts (`pooling.center`)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from scipy.linalg import eigh

from embrew.model.encoder_module import EncoderModule
from embrew.model.pooling import Center
from embrew.settings.encoder import Pooling

logger = logging.getLogger(__name__)
E = TypeVar("E", bound=EncoderModule)
NO_TEXTS = "its mean is that of training texts; train a recipe with stages, or run embrew center MODEL --texts FILE"
CHUNK = 1024  # texts whose vectors are in memory at once
CONSTANT = 1e-10  # variance, as a share of the squared length of the mean, below which vectors differ by rounding only
SIDES = {"text": "document", "query": "query", "positive": "document", "sentence1": "document", "sentence2": "document"}
"""The side on which a column of training rows is read."""
INSTRUCTIONS = {"query": "instruction", "document": "document_instruction"}
Groups = Mapping[tuple[str, str | None], list[str]]
"""Texts by side, and by prompt; None: that of the side."""


class Fit(NamedTuple):
    """What is subtracted from vectors.

    Attributes:
        mean: float64 `(dimensions,)`.
        components: float64 `(components, dimensions)`, orthonormal; those of the largest variance first.
        texts: number of texts.
    """

    mean: np.ndarray
    components: np.ndarray
    texts: int

    def as_layer(self) -> Center:
        """Return a layer that subtracts them, on the CPU."""
        components, width = self.components.shape
        layer = Center(width, components)
        layer.mean.copy_(torch.from_numpy(self.mean))
        layer.components.copy_(torch.from_numpy(self.components))
        return layer


def grouped(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str | None], list[str]]:
    """Return the distinct texts of canonical rows, by side and prompt; blank ones and negatives are left out."""
    groups: dict[tuple[str, str | None], dict[str, None]] = {}
    for row in rows:
        for column, side in SIDES.items():
            text = row.get(column)
            if isinstance(text, str) and text.strip():
                groups.setdefault((side, row.get(INSTRUCTIONS[side])), {})[text] = None
    return {key: list(texts) for key, texts in groups.items()}


def fit(chunks: Iterable[np.ndarray], components: int) -> Fit:
    """Return the mean and components of vectors; mean and covariance are summed in float64, a chunk at a time.

    Args:
        chunks: vectors `(texts, dimensions)`, as of `vectors_of`.
        components: number of components.

    Raises:
        ValueError: too few texts, equal vectors, vectors of fewer directions, or ones that are not finite.
    """
    count, mean, scatter = 0, np.zeros(0), np.zeros((0, 0))
    for chunk in chunks:
        vectors = chunk.astype(np.float64)
        if not np.isfinite(vectors).all():
            raise ValueError("the vector of a text is not finite; the model's weights are broken")
        if not count:
            mean, scatter = np.zeros(vectors.shape[1]), np.zeros((vectors.shape[1],) * 2)
        number = len(vectors)
        centered, shift = vectors - vectors.mean(0), vectors.mean(0) - mean
        scatter += centered.T @ centered + np.outer(shift, shift) * (count * number / (count + number))
        count += number
        mean = mean + shift * (number / count)
    check_components(components, count, len(mean))
    variance = float(np.trace(scatter)) / count
    if variance <= CONSTANT * float(mean @ mean):
        raise ValueError(f"the vectors of {count} texts are equal up to rounding, so nothing is left beside their mean")
    width = len(mean)
    values, directions = eigh(scatter / count, subset_by_index=[width - components - 1, width - 1])
    if values[0] <= CONSTANT * variance:
        raise ValueError(
            f"components={components}: the vectors of {count} texts vary in no more directions; give fewer components, "
            "or more texts"
        )
    share = float(values[1:].sum()) / variance
    length = float(mean @ mean) / (float(mean @ mean) + variance)
    logger.info(
        "vectors of %d texts: their mean is %.0f %% of their squared length; %d components hold %.0f %% of the rest",
        *(count, 100 * length, components, 100 * share),
    )
    return Fit(mean, directions[:, :0:-1].T.copy(), count)


def check_components(components: int, texts: int, dimensions: int) -> None:
    """Raise unless that many components can be subtracted from vectors of that many texts and dimensions."""
    if components < 0:
        raise ValueError(f"components={components}; give 0 (the mean alone) or more")
    if texts < 2:
        raise ValueError(f"{texts} texts with words; a mean to subtract needs two or more, some hundred are better")
    if components >= min(texts, dimensions):
        raise ValueError(f"components={components} of {texts} texts and {dimensions} dimensions; give fewer than both")


def vectors_of(encoder: Any, groups: Groups) -> Iterator[np.ndarray]:
    """Yield vectors of texts, float32 `(texts, dimensions)`, a chunk at a time.

    Args:
        encoder: any encoder with `encode_query` and `encode_document`, which neither normalises nor truncates.
        groups: texts; each is read with the prompt of its side, or of its group.
    """
    for (side, prompt), texts in sorted(groups.items(), key=str):
        encode = encoder.encode_query if side == "query" else encoder.encode_document
        options: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
        for start in range(0, len(texts), CHUNK):
            vectors = encode(texts[start : start + CHUNK], show_progress_bar=False, **options)
            yield np.asarray(vectors, dtype=np.float32)


def centered(encoder: E, groups: Groups, components: int = 0) -> E:
    """Return the encoder, on the same weights, with the mean and components of texts' vectors subtracted.

    A mean and components that it subtracts already are replaced.

    Args:
        encoder: the encoder; it is not changed.
        groups: training texts, as of `grouped`.
        components: number of principal components; 0: centring alone.

    Raises:
        ValueError: as `fit_encoder`.
    """
    return with_fit(encoder, fit_encoder(encoder, groups, components))


def fit_encoder(encoder: EncoderModule, groups: Groups, components: int) -> Fit:
    """Return mean and components of the vectors of texts, neither centred, normalised nor truncated; as `fit`.

    Raises:
        ValueError: as `fit`; or the encoder has settings that do not go with `pooling.center`.
    """
    encoder.settings.replace(pooling=replace(encoder.pooling, center=True, components=components))  # raises early
    raw = uncentered(encoder).with_settings(normalize=False)
    raw.truncate_dim = None
    return fit(vectors_of(raw, groups), components)


def with_fit(encoder: E, fitted: Fit) -> E:
    """Return the encoder, on the same weights, with mean and components subtracted."""
    pooling = replace(encoder.pooling, center=True, components=len(fitted.components))
    return _with_center(encoder, fitted.as_layer().to(encoder.device), pooling)


def uncentered(encoder: E) -> E:
    """Return the encoder, on the same weights, without `pooling.center`; itself, where it has none."""
    return encoder if encoder.center is None else _with_center(encoder, None, encoder.pooling.uncentered)


def _with_center(encoder: E, center: Center | None, pooling: Pooling) -> E:
    changed = copy.copy(encoder)
    changed._modules = dict(encoder._modules)
    changed.center = center
    changed.settings = encoder.settings.replace(pooling=pooling)
    return changed
