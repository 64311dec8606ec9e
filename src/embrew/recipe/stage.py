"""A stage of a recipe: objective, data and training; and the evaluation of its stages."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from embrew.files.formats import RUN
from embrew.files.names import MAX_NAME_BYTES
from embrew.settings.validation import Config, refusing

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # of a running mean
Count = Annotated[int, Field(ge=1)]
Level = Literal["passive", "debug", "info", "warning", "error", "critical"]
Name = Annotated[str, Field(min_length=1)]


def _check_max_steps(value: int) -> int:
    if value == 0:
        raise ValueError("0 steps train nothing; give 1 or more, or -1 to train for num_train_epochs")
    return value


def _check_interval(value: float) -> float:
    if value > 1 and not float(value).is_integer():
        raise ValueError(
            f"{value} is not a whole number of steps; give one, or a number below 1 for a share of the stage"
        )
    return value


Interval = Annotated[int | float, Field(gt=0), AfterValidator(_check_interval)]


class Recomputing(Config):
    """The arguments of `torch.utils.checkpoint` that a recipe can hold."""

    use_reentrant: bool = False
    preserve_rng_state: bool = True
    determinism_check: Literal["default", "none"] = "default"
    debug: bool = False
    early_stop: bool = True
    every_n_layers: Count = 1
    offload: bool = False


TRAINING_TYPES: dict[str, Any] = {  # narrower types than those of TrainingArguments
    "max_steps": Annotated[int, Field(ge=-1), AfterValidator(_check_max_steps)],
    "num_train_epochs": Positive,
    "per_device_train_batch_size": Count,
    "gradient_accumulation_steps": Count,
    "learning_rate": Positive,
    "lr_scheduler_kwargs": dict[str, float | int | bool | str | None] | None,
    "warmup_steps": Annotated[int | float, Field(ge=0)],
    "optim_target_modules": Name | Annotated[list[Name], Field(min_length=1)] | None,
    "weight_decay": NotNegative,
    "adam_beta1": Decay,
    "adam_beta2": Decay,
    "adam_epsilon": Positive,
    "max_grad_norm": NotNegative,
    "activation_checkpointing": bool | None,
    "activation_checkpointing_kwargs": Recomputing | None,
    "gradient_checkpointing_kwargs": Recomputing | None,
    "torch_empty_cache_steps": Count | None,
    "logging_steps": Interval,
    "log_level": Level,
    "log_level_replica": Level,
    "save_strategy": Literal["no", "steps", "epoch"],
    "save_steps": Interval,
    "dataloader_num_workers": Annotated[int, Field(ge=0)],
    "dataloader_prefetch_factor": Count | None,
    "dataloader_multiprocessing_context": Literal["fork"] | None,  # the collator cannot be pickled
    "train_sampling_strategy": Literal["random", "sequential"],
    "ddp_bucket_cap_mb": Count | None,
    "ddp_timeout": Count,
}
_EVALUATED = "is set by embrew; leave it out; use evaluation.every, metric and patience"
_NO_EFFECT = "has no effect here; leave it out"
_BY_LAUNCHER = (
    "belongs to the launcher, not to a recipe (embrew recipe copy launch/fsdp2 or launch/zero2, then accelerate launch "
    "--config_file FILE); leave it out"
)
_HUB = "is for uploads, which embrew does not make during training; leave it out, and upload the finished folder"
_ROWS = "would change which rows a batch holds, or the order of batches; leave it out"
TRAINING_REFUSED = {  # patterns of keys, with the reason
    "output_dir": "is set by embrew (embrew train --output); leave it out",
    **dict.fromkeys(("seed", "data_seed"), "is set by embrew; give the recipe's seed"),
    **dict.fromkeys(
        ("remove_unused_columns", "label_names", "dataloader_persistent_workers", "restore_callback_states_*"),
        "is set by embrew; leave it out",
    ),
    "save_total_limit": "is set by embrew, which keeps the two newest checkpoints of a stage; leave it out",
    "resume_from_checkpoint": "is set by embrew; resume with embrew train --resume",
    **dict.fromkeys(("eval_*", "metric_for_best_model", "greater_is_better", "load_best_model_at_end"), _EVALUATED),
    **dict.fromkeys(("fsdp*", "deepspeed", "parallelism_config", "local_rank"), _BY_LAUNCHER),
    **dict.fromkeys(("push_to_hub", "hub_*"), _HUB),
    "do_*": f"{_NO_EFFECT}: transformers' own scripts read it",
    **dict.fromkeys(
        ("*_eval_*", "*_full_eval"), f"{_NO_EFFECT}: embrew evaluates in batches of evaluation.batch_tokens"
    ),
    "*liger_kernel*": f"{_NO_EFFECT}: losses over the vocabulary are computed in chunks already",
    "label_smoothing_factor": "applies to a model's own loss, which objectives do not use; leave it out",
    "auto_find_batch_size": (
        "would change the batch size; give a batch that fits, in contrastive stages with batch.mini_batch_num_tokens"
    ),
    **dict.fromkeys(("accelerator_config", "dataloader_in_order"), _ROWS),
    "ignore_data_skip": "would train a resumed run on other rows than an uninterrupted run; leave it out",
    "save_only_model": "would write checkpoints that cannot be resumed; leave it out",
    "save_on_each_node": "would let several processes write to one folder; leave it out, and use a shared file system",
    "enable_jit_checkpoint": "would write checkpoints that embrew does not verify; leave it out",
    **dict.fromkeys(("neftune_noise_alpha", "debug"), "fails with embrew's training step; leave it out"),
    "torch_compile*": "is not supported (compiled layers were no faster on a CPU); leave it out",
}


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

    @property
    def paths(self) -> list[str]:
        """`path` as a list, whether one is given or several."""
        return [self.path] if isinstance(self.path, str) else self.path

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

    `attention` sets the encoder's attention from this stage on. `training.keep`: steps whose model is saved too.
    """

    name: str
    objective: dict[str, Any]
    data: Datasets
    training: dict[Annotated[str, refusing(TRAINING_REFUSED)], Any] = {}
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
        if re.search(r"\.(work|tensorboard|step-\d+)$", name):
            raise ValueError(f"{name!r}: folders that end like this belong to other stages; choose another name")
        if name.lower() == RUN.file:
            raise ValueError(f"{name!r} is a file of the run's folder; choose another name")
        if len(name) > MAX_NAME_BYTES:
            raise ValueError(
                f"{name[:20]!r}... names a folder and has {len(name)} characters; allowed: {MAX_NAME_BYTES}"
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
        has_ratios = any(config.ratio is not None for config in self.datasets)
        if (weighted or has_ratios or self.mix) and len(self.datasets) < 2:
            raise ValueError("weight, ratio and mix need several data sets; there is one")
        if weighted and has_ratios:
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

    @property
    def placed_datasets(self) -> list[tuple[str, DataConfig]]:
        """The data sets, each after its key in the stage: `data`, or `data.0` and so on."""
        if not isinstance(self.data, list):
            return [("data", self.data)]
        return [(f"data.{number}", config) for number, config in enumerate(self.data)]


class UniformityConfig(Config):
    """The data of alignment and uniformity: pairs of positives, or scored pairs of which those above `above` count.

    Attributes:
        path: a data folder or file, such as an STS set, or held-out rows of the training data.
        split: split of a folder; default: dev, else test, else train.
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
        seed: seed of the hashes.
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
        return any(isinstance(dev_set, DevRows) for dev_set in self.dev)

    @model_validator(mode="after")
    def _check_every(self) -> EvaluationConfig:
        if self.every is not None and self.at is not None:
            raise ValueError("every keeps the best step, at keeps the last; give one of them")
        chooses_step = (
            self.patience is not None or self.metric != "dev" or (self.stages is not None and self.at is None)
        )
        if self.every is None and chooses_step:
            raise ValueError("metric, patience and stages choose among evaluations within a stage; give every as well")
        if self.every is not None and self.every >= 1 and not float(self.every).is_integer():
            raise ValueError(
                f"every={self.every}; give a whole number of steps, or a number below 1 for a share of the stage"
            )
        return self
