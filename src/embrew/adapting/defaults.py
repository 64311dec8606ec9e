"""The defaults of `embrew adapt`: `defaults.yaml`, overrides of its keys, and the recipes that it describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field

from embrew.recipe.overrides import Override, apply_overrides
from embrew.settings.validation import Config, check_fields
from embrew.settings.yaml_files import parse_yaml

DISTILLATION = "distillation"  # the method that needs a teacher
PREFIX = "adapt."  # of overrides of these keys; others are keys of recipes
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Keys = dict[str, Any]  # of a part of a recipe
RowSource = Literal["pairs", "own_pairs", "texts"]


class HeldOut(Config):
    """How many pairs are held out, as shares of all and as numbers."""

    test: Share
    most_test: Count
    dev: Share
    least_dev: Count
    most_dev: Count
    few: Annotated[int, Field(ge=4)]


class Below(Config):
    """What a stage learns from where there are fewer pairs to train on, and passages."""

    pairs: Count
    rows: RowSource
    objective: Keys


class StageDefaults(Config):
    """A stage without its data and its number of steps.

    Attributes:
        share: share of the minutes of training.
        epochs: maximum number of epochs.
        rows: data that it learns from.
        below: data and objective instead of these, with few pairs.
        stage: other keys of the recipe's stage.
    """

    share: Share
    epochs: Annotated[float, Field(gt=0)]
    rows: RowSource
    below: Below | None = None
    stage: Keys


class ModelDefaults(Config):
    """A model to train: keys of the recipe's encoder, and its stages."""

    encoder: Keys
    stages: Annotated[list[StageDefaults], Field(min_length=1)]


class ReadyDefaults(Config):
    """How a model that is an encoder already is trained further.

    Attributes:
        full_below: number of parameters below which every weight is trained; else a LoRA, as where it has one already.
        full, lora: keys of the stage's `training`.
        stages: the stages, without data and steps.
    """

    full_below: Count
    full: Keys
    lora: Keys
    stages: Annotated[list[StageDefaults], Field(min_length=1)]

    def model(self, encoder: Keys, parameters: int) -> ModelDefaults:
        """Return encoder and stages for a model of that size; `encoder` holds the keys of its `encoder` in a recipe."""
        trains_all = parameters < self.full_below and "lora" not in encoder
        stages = [stage.model_copy(deep=True) for stage in self.stages]
        for stage in stages:
            stage.stage["training"] = {**(self.full if trains_all else self.lora), **stage.stage.get("training", {})}
        return ModelDefaults(encoder={**encoder, **({"lora": None} if trains_all else {})}, stages=stages)


class Negatives(Config):
    """How hard negatives are mined of the training texts, with the start itself.

    Attributes:
        number: maximum number of negatives of a pair.
        relative_margin: margin; a negative's similarity is below (1 - margin) times the positive's.
        share: share of the minutes that mining may take; where it would take more, nothing is mined.
    """

    number: Count
    relative_margin: Annotated[float, Field(ge=0, le=1)]
    share: Share


class CenterDefaults(Config):
    """How the best untrained pooling of a bare language model is also tried centred (`embrew center`).

    Attributes:
        texts: maximum number of training texts, queries and documents together, that the mean is computed of.
        components: number of principal components that are subtracted too.
    """

    texts: Annotated[int, Field(ge=2)]
    components: Annotated[int, Field(ge=0)]


class Questions(Config):
    """How many questions are written.

    Attributes:
        per_passage: number of questions per training passage.
        most: maximum number of passages with questions, of training and of held-out ones each.
    """

    per_passage: Count
    most: Count


class Rates(Config):
    """How learning rates are searched on dev.

    Attributes:
        factors: multiples of the default rate.
        share: share of the minutes, for all of them together.
        least: number of steps that each must get; with fewer nothing is searched.
    """

    factors: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    share: Share
    least: Count


class Defaults(Config):
    """The keys of `defaults.yaml`, which describes them."""

    minutes: Annotated[float, Field(gt=0)]
    evaluations: Count
    max_chars: Annotated[int, Field(ge=50)]
    max_documents: dict[Literal["dev", "test"], Annotated[int, Field(ge=10)]]
    longest: Annotated[int, Field(ge=16)]
    batch_tokens: Count
    batch: Keys
    held_out: HeldOut
    poolings: Annotated[list[str], Field(min_length=1)]
    center: CenterDefaults | None
    lora: Keys
    contrast: dict[str, ModelDefaults]
    ready: ReadyDefaults
    negatives: Negatives | None
    questions: Questions
    rates: Rates
    methods: dict[str, ModelDefaults]


@dataclass(frozen=True, kw_only=True)
class RaceOptions:
    """The options of a race; see `adapt`."""

    method: str
    defaults: Defaults
    overrides: tuple[Override, ...]
    seed: int
    export: bool
    quick: bool
    writer: str | None = None


def read_defaults(overrides: Sequence[Override] = (), *, quick: bool = False) -> Defaults:
    """Return the defaults with overrides, each `adapt.KEY=VALUE`; `quick`: with the values of that key.

    Raises:
        ValueError: an unknown key, or a value that is not allowed.
    """
    values = shipped("defaults.yaml")
    shorter = values.pop("quick")
    values = values | shorter if quick else values
    values = apply_overrides({PREFIX[:-1]: values}, overrides)[PREFIX[:-1]]
    return check_fields(Defaults, values, message_prefix="adapt: ")


@cache
def method_names() -> list[str]:
    """Return the names of the methods."""
    return list(shipped("defaults.yaml")["methods"])


def shipped(name: str) -> Keys:
    """Return the values of a YAML file beside this module."""
    text = resources.files("embrew").joinpath("adapting", name).read_text(encoding="utf-8")
    return parse_yaml(text, source=name)
