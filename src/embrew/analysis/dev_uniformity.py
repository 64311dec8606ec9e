"""Report alignment and uniformity (Wang and Isola) with the scores of dev and guard sets during training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embrew.analysis.uniformity import alignment_uniformity, positive_pairs
from embrew.data.datasets import load
from embrew.data.formats import same_name
from embrew.data.reading import DEV_SPLITS, expand, read, splits
from embrew.evaluation.dev import DevSets, dev_sets_of
from embrew.files.names import check_path_known
from embrew.sampling import sample_in_order

if TYPE_CHECKING:
    from embrew.encoder import Encoder
    from embrew.recipe import Recipe

NAMES = ("alignment", "uniformity")


@dataclass(frozen=True)
class DevSetsWithUniformity:
    """Dev and guard sets whose scores are followed by `alignment` and `uniformity`; made by `add_uniformity`.

    Lower is better for both. Nothing is chosen by them.
    """

    sets: DevSets
    positives: tuple[tuple[str, str], ...]
    different: tuple[str, ...]
    split: str

    @property
    def metrics(self) -> list[str]:
        """Names of the scores that a best step can be chosen by: those of the dev sets."""
        return self.sets.metrics

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split and metric of each set, and of alignment and uniformity."""
        size = f"{len(self.positives)} positives, {len(self.different)} texts"
        added = {"kind": "pairs", "split": self.split, "metric": "less is better", "size": size}
        return {**self.sets.about, **dict.fromkeys(NAMES, added)}

    @property
    def reserved(self) -> list[str]:
        """Texts of dev rows that are split off training rows, which may not be trained on."""
        return self.sets.reserved

    def __call__(self, encoder: Encoder) -> dict[str, float]:
        """Return the scores of the sets, `alignment` and `uniformity`."""
        found = alignment_uniformity(encoder, self.positives, self.different, batch_tokens=self.sets.batch_tokens)
        return {**self.sets(encoder), "alignment": found.alignment, "uniformity": found.uniformity}

    def texts(self) -> Mapping[str, Iterable[str]]:
        """Return the texts of the dev and guard sets."""
        return self.sets.texts()


def evaluation_of(recipe: Recipe) -> DevSets | DevSetsWithUniformity | None:
    """Return what scores a run by a recipe's `evaluation`; None if the recipe has none.

    Raises:
        ValueError, FileNotFoundError: as `dev_sets` and `add_uniformity`, or a path was stored by its name only.
    """
    if recipe.evaluation is not None:
        for kind, several in (("dev", recipe.evaluation.dev), ("guard", recipe.evaluation.guard)):
            for number, one in enumerate(several):
                key = f"evaluation.{kind}.{number}"
                if isinstance(one, str):
                    check_path_known(one, key)
                else:
                    check_path_known(one.path, f"{key}.path")
    sets = dev_sets_of(recipe)
    if sets is None or recipe.evaluation is None or recipe.evaluation.uniformity is None:
        return sets
    return add_uniformity(sets, **recipe.evaluation.uniformity.model_dump())


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
    taken = [name for name in NAMES if name in sets.about]
    if taken:
        raise ValueError(f"a dev set is called {taken[0]}, which evaluation.uniformity reports; rename its folder")
    split = _split(path, split)
    record = next(iter(read(path, split=split)), None)
    if "score" in (columns or {}) or same_name(record.values if record is not None else (), "score"):
        rows = load(path, kind="scored", split=split, columns=dict(columns or {}))
        left, right = list(rows["sentence1"]), list(rows["sentence2"])
        positives = positive_pairs(left, right, rows["score"], above=above)
    else:
        rows = load(path, kind="pairs", split=split, columns=dict(columns or {}))
        left, right = list(rows["query"]), list(rows["positive"])
        positives = list(zip(left, right, strict=True))
    different = sample_in_order(list(dict.fromkeys([*left, *right])), max_texts, seed=seed)
    if not positives or len(different) < 2:
        raise ValueError(f"{path}: {len(positives)} positives and {len(different)} different texts; give more rows")
    return DevSetsWithUniformity(sets, tuple(sample_in_order(positives, max_texts, seed=seed)), tuple(different), split)


def _split(path: str | Path, split: str | None) -> str:
    folder = Path(expand(path))
    if split is not None or not folder.is_dir():
        return split or "train"
    there = splits(folder)
    return next((name for name in (*DEV_SPLITS, "test") if name in there), "train")
