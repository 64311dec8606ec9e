"""Evaluation settings of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from embrew.config.validation import Config


class UniformityConfig(Config):
    """The data of alignment and uniformity: pairs of positives, or scored pairs of which those above `above` count.

    Attributes:
        path: a data folder or file, such as an STS set, or held-out rows of the training data.
        split: of a folder; default: dev, else test, else train.
        columns: as in a stage's data.
        above: pairs with a score above this are positives.
        max_texts: maximum number of different texts, for uniformity, and of positives; a sample of more.
    """

    path: str
    split: str | None = None
    columns: dict[str, str] = {}
    above: float = 4.0
    max_texts: Annotated[int, Field(ge=2)] = 1000


class DevRows(Config):
    """Dev rows that are split off a folder's training rows by hashes of their texts, and not trained on.

    Attributes:
        path: a data folder with a train split; rows with a text of its test split are not taken.
        split: the split that they are taken from.
        rows: minimum number of rows; rows with the same first text stay together.
        seed: of the hashes.
    """

    path: str
    split: Literal["train"] = "train"
    rows: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0)] = 42


class EvaluationConfig(Config):
    """Evaluation before and after each stage; with `every` or `at`, also within stages.

    Attributes:
        dev: data folders with a dev split, or files, of the target domain; or rows split off training rows.
        guard: sets of other domains, which should not get worse; any split, since no choice depends on them.
        metric: the score that chooses the best step of a stage: `dev` (the mean), a dev set's name, or `gap`, the share
            of the gap closed, in stages whose objective is `compression`.
        every: steps between evaluations within a stage; below 1: a share of the stage. The best step is kept.
        at: `log`: after 1, 2, 4, 8, … steps and the last; or a list of numbers of samples. The last step is kept.
        patience: early stopping after `patience` evaluations without a better `metric`.
        stages: stages that `every` or `at` applies to; default: all.
        uniformity: compute alignment and uniformity (Wang & Isola) too; no choice depends on them.
        batch_tokens: padded tokens per batch.
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
            raise ValueError("every keeps the best step, at keeps the last; give one of them")
        chosen = self.patience is not None or self.metric != "dev" or (self.stages is not None and self.at is None)
        if self.every is None and chosen:
            raise ValueError("metric, patience and stages choose among evaluations within a stage; give every as well")
        if self.every is not None and self.every >= 1 and not float(self.every).is_integer():
            raise ValueError(
                f"every={self.every}; give a whole number of steps, or a number below 1 for a share of the stage"
            )
        return self
