"""What a recipe is scored by between and within its stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from embrew.recipe.base import Config


class UniformityConfig(Config):
    """On what alignment and uniformity are taken: pairs with scores (those above `above` are positives), or positives.

    Attributes:
        path: a data folder or file, such as an STS set, or held-out rows of what is trained on.
        split: of a folder; by default dev, else test, else train.
        columns: as in a stage's data.
        above: scores above this are positives.
        max_texts: a sample of so many different texts, for uniformity, and of so many positives.
    """

    path: str
    split: str | None = None
    columns: dict[str, str] = {}
    above: float = 4.0
    max_texts: Annotated[int, Field(ge=2)] = 1000


class DevRows(Config):
    """Dev rows that are split off a folder's training rows: chosen by hashes of their text, and not trained on.

    Attributes:
        path: a data folder with a train split; of its test split no text is taken.
        split: what they are split off.
        rows: minimum number of rows; rows with the same first text stay together.
        seed: of the hashes.
    """

    path: str
    split: Literal["train"] = "train"
    rows: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0)] = 42


class EvaluationConfig(Config):
    """What is scored before, between and after the stages; with `every` or `at`, also within them.

    Attributes:
        dev: data folders with a dev split, or files, of the domain that is trained for; or rows of training rows.
        guard: of other domains, which must not get worse; any split, since nothing is chosen by them.
        metric: the score by which the best step of a stage is chosen: `dev`, the mean, or one dev set's name.
        every: steps between two evaluations within a stage; below 1, a part of the stage. The best step is kept.
        at: `log`: score after 1, 2, 4, 8, … steps and the last; or after so many samples. The last step is kept.
        patience: end a stage after so many evaluations without a better `metric`.
        stages: those that `every` or `at` holds for; by default all.
        uniformity: score alignment and uniformity (Wang & Isola) too; nothing is chosen by them.
        batch_tokens: padded tokens a batch.
    """

    dev: Annotated[list[str | DevRows], Field(min_length=1)]
    guard: list[str] = []
    metric: str = "dev"
    every: Annotated[int | float, Field(gt=0)] | None = None
    at: Literal["log"] | Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)] | None = None
    patience: Annotated[int, Field(gt=0)] | None = None
    stages: Annotated[list[str], Field(min_length=1)] | None = None
    uniformity: UniformityConfig | None = None
    batch_tokens: Annotated[int, Field(gt=0)] = 8192

    @property
    def reserves(self) -> bool:
        """Whether dev rows are split off training rows, which are then not trained on."""
        return any(isinstance(one, DevRows) for one in self.dev)

    @model_validator(mode="after")
    def _check_every(self) -> EvaluationConfig:
        if self.every is not None and self.at is not None:
            raise ValueError("every keeps the best step, at draws a curve to the last; give one of them")
        chosen = self.patience is not None or self.metric != "dev" or (self.stages is not None and self.at is None)
        if self.every is None and chosen:
            raise ValueError("metric, patience and stages choose among evaluations within a stage; give every as well")
        if self.every is not None and self.every >= 1 and not float(self.every).is_integer():
            raise ValueError(f"every={self.every}; give whole steps, or a number below 1 for a part of the stage")
        return self
