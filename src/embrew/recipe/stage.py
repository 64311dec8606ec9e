"""A stage of a recipe: objective, data and training."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from embrew.recipe.base import Config
from embrew.recipe.training import TrainingKey

Path = Annotated[str, Field(min_length=1)]


class DataConfig(Config):
    """One data set: its path, which rows are used, and which columns."""

    path: Path | Annotated[list[Path], Field(min_length=1)]
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    columns: dict[str, str] = {}
    where: dict[str, bool | int | float | str] = {}
    sentences: bool = False
    instruction: str | None = None
    instructions: Annotated[list[str], Field(min_length=2)] | None = None
    instruct: Literal["query", "both"] = "query"
    weight: Annotated[float, Field(gt=0)] | None = None
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    min_chars: Annotated[int, Field(ge=0)] | None = None
    max_chars: Annotated[int, Field(gt=0)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    max_rows: Annotated[int, Field(gt=0)] | None = None
    shuffle_seed: Annotated[int, Field(ge=0)] | None = None
    on_bad_rows: Literal["strict", "skip"] | None = None
    max_reject_rate: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check_lengths(self) -> DataConfig:
        if self.min_chars is not None and self.max_chars is not None and self.min_chars > self.max_chars:
            raise ValueError(f"min_chars={self.min_chars} and max_chars={self.max_chars} leave no row; give a range")
        if self.instruction is not None and self.instructions is not None:
            raise ValueError("give instruction, or instructions (several, of which each batch has one), not both")
        if self.max_reject_rate is not None and self.on_bad_rows != "skip":
            raise ValueError(f"max_reject_rate={self.max_reject_rate} goes with on_bad_rows: skip; give both")
        return self


class BatchConfig(Config):
    """The batch of a contrastive stage: `size` is the global batch, over all processes.

    With a `mini_batch_…`, gradients are cached: memory holds that many texts, or padded tokens, at a time.
    """

    size: Annotated[int, Field(gt=0)]
    mini_batch_size: Annotated[int, Field(gt=0)] | None = None
    mini_batch_num_tokens: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> BatchConfig:
        if self.mini_batch_size and self.mini_batch_num_tokens:
            raise ValueError("give mini_batch_size or mini_batch_num_tokens, not both")
        return self


class MixConfig(Config):
    """How a stage samples from several data sets: without weights, in proportion to (ratio × size)^temperature."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    batches: Literal["one", "mixed"] = "one"


Datasets = Annotated[
    Annotated[DataConfig, Tag("one data set")] | Annotated[list[DataConfig], Tag("several"), Field(min_length=1)],
    Discriminator(lambda value: "several" if isinstance(value, (list, tuple)) else "one data set"),
]


class StageConfig(Config):
    """One round of training: an objective, its data and `transformers.TrainingArguments` under their own names.

    `attention` sets the encoder's attention from this stage on.
    """

    name: str
    objective: dict[str, Any]
    data: Datasets
    training: dict[TrainingKey, Any] = {}
    batch: BatchConfig | None = None
    mix: MixConfig | None = None
    adapter: Literal["continue", "merge"] = "continue"
    attention: Literal["causal", "bidirectional", "memory_causal"] | None = None
    train_memory: bool = True

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", name) or name.endswith("."):
            raise ValueError(
                f"{name!r} names a folder: start with a letter, then letters, digits, '-', '_' or '.' (not at the end)"
            )
        return name

    @field_validator("objective")
    @classmethod
    def _check_objective(cls, objective: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(objective.get("type"), str):
            raise ValueError(f"type={objective.get('type')!r}; give an objective's name, for example type: contrastive")
        return objective

    @model_validator(mode="after")
    def _check_mix(self) -> StageConfig:
        weighted = [config for config in self.datasets if config.weight is not None]
        if weighted and len(weighted) < len(self.datasets):
            raise ValueError(f"{len(weighted)} of {len(self.datasets)} data sets have a weight; give all, or none")
        rated = any(config.ratio is not None for config in self.datasets)
        if (weighted or rated or self.mix) and len(self.datasets) < 2:
            raise ValueError("weight, ratio and mix need several data sets; there is one")
        if weighted and rated:
            raise ValueError(
                "give weights (proportions, independent of sizes), or ratios (shares of the sizes), not both"
            )
        if weighted and self.mix and self.mix.temperature != 1.0:
            raise ValueError("give weights, or mix.temperature, not both")
        return self

    @property
    def datasets(self) -> list[DataConfig]:
        """`data` as a list, whether one data set is given or several."""
        return self.data if isinstance(self.data, list) else [self.data]
