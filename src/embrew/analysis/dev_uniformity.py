"""Alignment and uniformity beside the scores of dev and guard sets, during training.

Formula and source are those of `embrew.analysis.uniformity`; the positives are pairs of a scored data set above a
threshold, or the pairs of rows with a query and a positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embrew.analysis.input_texts import find_split
from embrew.analysis.uniformity import alignment_uniformity, positive_pairs
from embrew.data.datasets import load
from embrew.data.formats import same_name
from embrew.data.reading import DEV_SPLITS, read
from embrew.evaluation.dev import DevSets, dev_sets_of
from embrew.files.names import check_path_known
from embrew.sampling import sample_in_order
from embrew.text_encoder import TextEncoder

if TYPE_CHECKING:
    from embrew.recipe import Recipe

NAMES = ("alignment", "uniformity")


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
        **vars(sets),
        positives=tuple(sample_in_order(positives, max_texts, seed=seed)),
        different=tuple(different),
        split=split,
    )
