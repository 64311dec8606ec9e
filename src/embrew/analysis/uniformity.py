"""Alignment and uniformity: closeness of similar texts, and spread of all texts over the sphere.

    alignment  = E ‖f(x) − f(x⁺)‖²               over positive pairs
    uniformity = log E exp(−2 ‖f(x) − f(y)‖²)    over pairs of different texts

with f(x) a vector of length 1. Lower is better for both.

Source: *Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere* (Wang &
Isola, 2020); for text *SimCSE* (Gao et al., 2021), whose choice of positive pairs is used here. Beside the scores of
dev and guard sets during training, the positives are pairs of a scored data set above a threshold, or the pairs of rows
with a query and a positive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embrew.analysis.input_texts import find_split, vectors_of
from embrew.data.datasets import load
from embrew.data.formats import same_name
from embrew.data.reading import DEV_SPLITS, read
from embrew.evaluation.dev import DevSets, dev_sets_of
from embrew.files.names import check_path_known
from embrew.ranking import sample_in_order
from embrew.text_encoder import TextEncoder, unit_vectors

if TYPE_CHECKING:
    from embrew.recipe import Recipe

BLOCK = 1024  # rows of the matrix of cosines that are in memory at a time
NAMES = ("alignment", "uniformity")


def alignment(left: np.ndarray, right: np.ndarray) -> float:
    """Return the alignment of positive pairs: rows of two `(pairs, dimensions)` matrices of unit vectors."""
    return float((np.linalg.norm(left.astype(np.float64) - right, axis=-1) ** 2).mean())


def uniformity(vectors: np.ndarray) -> float:
    """Return the uniformity over all pairs of different rows of a matrix of unit vectors.

    Products are in the vectors' own precision (float32 from an encoder), sums in float64.
    """
    count = len(vectors)
    if count < 2:
        raise ValueError(f"uniformity of {count} vectors; give two or more")
    total = 0.0
    for start in range(0, count, BLOCK):
        cosines = (vectors[start : start + BLOCK] @ vectors.T).astype(np.float64).clip(-1, 1)
        kernel = np.exp(-2 * (2 - 2 * cosines))
        total += float(kernel.sum() - np.trace(kernel, offset=start))
    return float(np.log(total / (count * (count - 1))))


@dataclass(frozen=True)
class AlignmentUniformity:
    """Alignment and uniformity, and the numbers of pairs and texts they are computed on."""

    alignment: float
    uniformity: float
    positives: int
    texts: int


def positive_pairs(
    sentence1: Sequence[str], sentence2: Sequence[str], scores: Sequence[float], *, above: float = 4.0
) -> list[tuple[str, str]]:
    """Return the pairs of an STS set with scores above `above`; the default is *SimCSE*'s, for scores from 0 to 5.

    Raises:
        ValueError: there are none.
    """
    pairs = [(x, y) for x, y, score in zip(sentence1, sentence2, scores, strict=True) if score > above]
    if not pairs:
        raise ValueError(
            f"no pair scores above {above:g}; the highest score is {max(scores):g}; give a lower threshold"
        )
    return pairs


def alignment_uniformity(
    encoder: TextEncoder,
    positives: Sequence[tuple[str, str]],
    texts: Sequence[str],
    *,
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> AlignmentUniformity:
    """Return alignment over `positives` and uniformity over `texts`; every text is encoded once.

    Args:
        encoder: the encoder.
        positives: pairs of similar texts.
        texts: distinct texts, such as all sentences of an STS set; a duplicate would count as a collapsed pair.
        batch_tokens: padded tokens per batch; for an `Encoder` only.
        show_progress_bar: show a progress bar.
    """
    distinct = list(dict.fromkeys([*texts, *(text for pair in positives for text in pair)]))
    position = {text: row for row, text in enumerate(distinct)}
    vectors = vectors_of(encoder, distinct, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    vectors = unit_vectors(vectors, what="texts")
    left, right = ([position[pair[side]] for pair in positives] for side in (0, 1))
    return AlignmentUniformity(
        alignment=alignment(vectors[left], vectors[right]),
        uniformity=uniformity(vectors[: len(texts)]),
        positives=len(positives),
        texts=len(texts),
    )


@dataclass(frozen=True, kw_only=True)
class DevSetsWithUniformity(DevSets):
    """Dev and guard sets whose scores are followed by `alignment` and `uniformity`; made by `add_uniformity`.

    Lower is better for both. Nothing is chosen by them.
    """

    positives: tuple[tuple[str, str], ...]
    different: tuple[str, ...]
    split: str

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split and metric of each set, and of alignment and uniformity."""
        size = f"{len(self.positives)} positives, {len(self.different)} texts"
        added = {"kind": "pairs", "split": self.split, "metric": "less is better", "size": size}
        return {**super().about, **dict.fromkeys(NAMES, added)}

    def __call__(self, encoder: TextEncoder) -> dict[str, float]:
        """Return the scores of the sets, `alignment` and `uniformity`."""
        spread = alignment_uniformity(encoder, self.positives, self.different, batch_tokens=self.batch_tokens)
        return {**super().__call__(encoder), "alignment": spread.alignment, "uniformity": spread.uniformity}


def evaluation_of(recipe: Recipe) -> DevSets | None:
    """Return what scores a run by a recipe's `evaluation`; None if the recipe has none.

    Raises:
        ValueError, FileNotFoundError: as `dev_sets` and `add_uniformity`, or a path was stored by its name only.
    """
    settings = recipe.evaluation
    if settings is None:
        return None
    for kind, data_sets in (("dev", settings.dev), ("guard", settings.guard)):
        for number, data_set in enumerate(data_sets):
            key = f"evaluation.{kind}.{number}"
            check_path_known(*((data_set, key) if isinstance(data_set, str) else (data_set.path, f"{key}.path")))
    sets = dev_sets_of(recipe)
    if sets is None or settings.uniformity is None:
        return sets
    return add_uniformity(sets, **settings.uniformity.model_dump())


def add_uniformity(
    sets: DevSets,
    path: str | Path,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    above: float = 4.0,
    max_texts: int = 1000,
    seed: int = 42,
) -> DevSetsWithUniformity:
    """Add alignment and uniformity of pairs of texts to dev and guard sets.

    Args:
        sets: dev and guard sets.
        path: pairs with scores, of which those above `above` are positives (*SimCSE*: STS-B above 4), or rows of query
            and positive, such as held-out rows of the training data.
        split: split of a folder; default: dev, else test, else train.
        columns: names in the file by our names of the columns.
        above: pairs with higher scores are positives.
        max_texts: sample size, of the distinct texts and of the positives.
        seed: random seed of the sample.

    Raises:
        ValueError: there are no positives or fewer than two distinct texts, or a dev set is called like a figure.
    """
    duplicate = next((name for name in NAMES if name in sets.about), None)
    if duplicate is not None:
        raise ValueError(f"a dev set is called {duplicate}, which evaluation.uniformity reports; rename its folder")
    split = find_split(path, split, preferred=(*DEV_SPLITS, "test"))
    record = next(iter(read(path, split=split)), None)
    mapping = dict(columns or {})
    if "score" in mapping or (record is not None and same_name(record.values, "score")):
        rows = load(path, kind="scored", split=split, columns=mapping)
        left, right = list(rows["sentence1"]), list(rows["sentence2"])
        positives = positive_pairs(left, right, rows["score"], above=above)
    else:
        rows = load(path, kind="pairs", split=split, columns=mapping)
        left, right = list(rows["query"]), list(rows["positive"])
        positives = list(zip(left, right, strict=True))
    different = sample_in_order(list(dict.fromkeys([*left, *right])), max_texts, seed=seed)
    if not positives or len(different) < 2:
        raise ValueError(f"{path}: {len(positives)} positives and {len(different)} different texts; give more rows")
    return DevSetsWithUniformity(
        **{field.name: getattr(sets, field.name) for field in fields(DevSets)},
        positives=tuple(sample_in_order(positives, max_texts, seed=seed)),
        different=tuple(different),
        split=split,
    )
