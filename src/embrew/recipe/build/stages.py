"""What a stage is trained with: its objective and `TrainingArguments`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.utils import is_torch_tf32_available

from embrew.distributed import world_size
from embrew.methods import OBJECTIVES, EmbeddingObjective, Objective
from embrew.methods.base import settings_of
from embrew.recipe.encoder import recipe_keys
from embrew.recipe.overrides import Override
from embrew.recipe.recipe import Recipe
from embrew.recipe.stage import TRAINING_REFUSED, TRAINING_TYPES, Count, StageConfig
from embrew.settings.validation import KeyPath, check_fields, choose_from, dotted, fields_model
from embrew.stock import READING_FIELDS, is_stock, read_stock
from embrew.storage.base_model import DTYPES, pick_device, pick_dtype


def load_recipe(name_or_path: str | Path, overrides: Sequence[Override] = ()) -> Recipe:
    """Load a recipe as `Recipe.load`; an override of an objective's type drops the recipe's keys that it lacks.

    Where `encoder` names a Sentence-Transformers model, and no template, attention or pooling, these are the model's.
    """
    return Recipe.load(name_or_path, overrides, keys_of=objective_keys, reading_of=with_stock_settings)


def with_stock_settings(encoder: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of `encoder`, completed by those of the Sentence-Transformers model that it names.

    Raises:
        ValueError: as `embrew.stock.read_stock`.
    """
    model = encoder.get("model")
    if not isinstance(model, str) or not READING_FIELDS.isdisjoint(encoder) or not is_stock(model):
        return encoder
    weights = encoder.get("dtype", "auto")
    stock = read_stock(model, dtype=pick_dtype(weights if weights in DTYPES else "auto", pick_device(None)))
    completed = recipe_keys(stock.settings)
    for key, value in encoder.items():
        merges = key in ("prompts", "max_length") and isinstance(value, dict)
        completed[key] = {**completed[key], **value} if merges else value
    return completed


def objective_keys(name: Any) -> Collection[str] | None:
    """Return the keys of a type of objective in a recipe; None: there is no such type."""
    try:
        names = [field.name for field in fields(_kind(name, ()))]
    except ValueError:
        return None
    return [*names, "scale"] if "temperature" in names else names


def objective(settings: Mapping[str, Any], *, path: KeyPath = ()) -> Objective:
    """Build an objective from its recipe block, by name or as `package.module:Class`.

    Args:
        settings: the block.
        path: its keys in the recipe, for messages, for example `("stages", "align", "objective")`.

    Raises:
        ValueError: unknown type, unknown setting, or invalid value.
    """
    settings = dict(settings)
    name = settings.pop("type", None)
    kind = _kind(name, path)
    words = "" if path else f"objective {name}: "
    label = f"{dotted(path)}: objective {name}" if path else f"objective {name}"
    names = [field.name for field in fields(kind)]
    if "scale" in settings and "temperature" in names:  # what Sentence-Transformers and LLM2Vec use
        scale = settings.pop("scale")
        if "temperature" in settings:
            raise ValueError(f"{label}: scale is 1 / temperature; give one of them")
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
            raise ValueError(f"{label}: scale={scale!r}; give a number above 0, such as 20 (temperature 0.05)")
        settings["temperature"] = 1.0 / scale
    unknown = next((key for key in settings if key not in names), None)
    if unknown is not None:
        raise ValueError(f"{label} has no key {unknown!r}; {choose_from(unknown, names)}")
    if settings.get("base", name) is None and getattr(kind, "base", name) is None:  # it may be left out
        del settings["base"]
    if isinstance(settings.get("base"), Mapping):
        settings["base"] = objective(settings["base"], path=(*path, "base") if path else ())
    if "base" in settings and "base" in names and not isinstance(settings["base"], EmbeddingObjective):
        if isinstance(settings["base"], Objective):
            raise ValueError(f"{label}: base depends on more than embeddings; it cannot be nested")
        raise ValueError(
            f"{label}: base={settings['base']!r}; give an objective as a mapping, such as {{type: contrastive}}"
        )
    if "base" in settings and type(settings["base"]).precompute is not Objective.precompute:
        raise ValueError(f"{label}: base computes values before training; it cannot be nested")
    checked = check_fields(settings_of(kind), settings, path=path, message_prefix=words)
    try:
        return kind(**{name: getattr(checked, name) for name in settings})
    except ValueError as error:  # incompatible settings
        raise ValueError(f"{label}: {error}") from None


def _kind(name: Any, path: KeyPath) -> type[Objective]:
    key_path = f"{dotted((*path, 'type'))}" if path else "objective type"
    if not isinstance(name, str):
        raise ValueError(f"{key_path}={name!r}; give an objective's name, for example type: contrastive")
    if ":" not in name:
        if name not in OBJECTIVES:
            raise ValueError(f"{key_path}={name!r}; {choose_from(name, OBJECTIVES)}")
        return OBJECTIVES[name]
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{key_path}={name!r} cannot be imported ({error}); give package.module:Class") from None
    if not (isinstance(kind, type) and issubclass(kind, Objective) and is_dataclass(kind)):
        raise ValueError(f"{key_path}={name!r} is not a dataclass derived from embrew.methods.Objective")
    return kind


DEFAULTS: dict[str, Any] = {
    "logging_steps": 0.1,
    "save_steps": 0.2,
    "report_to": "none",
    "disable_tqdm": False,
    "ddp_find_unused_parameters": False,
}


@dataclass
class StageArguments(TrainingArguments):
    """`transformers.TrainingArguments`, and `training.keep`.

    Attributes:
        keep: steps whose model is saved in addition to that of the last step.
    """

    keep: Annotated[list[Count], Field(min_length=1)] | None = None

    def check_keep(self, last: int) -> None:
        """Raise ValueError where a step of `keep` is beyond the last step of the stage."""
        if self.keep and max(self.keep) > last:
            raise ValueError(f"training.keep={self.keep}, but the stage has {last} steps; give steps from 1 to {last}")


Integration: Any = Literal["none", "all", *INTEGRATION_TO_CALLBACK]
TRAINING = fields_model(
    StageArguments, TRAINING_TYPES | {"report_to": Integration | list[Integration] | None}, TRAINING_REFUSED
)


def training_arguments(
    stage: StageConfig,
    objective: Objective,
    output_dir: Path,
    *,
    seed: int,
    every: float | None = None,
    autocast: bool = False,
) -> StageArguments:
    """Return a stage's training arguments.

    Args:
        stage: settings of the stage.
        objective: objective of the stage.
        output_dir: folder of its checkpoints.
        seed: random seed of training and of the order of rows.
        every: steps between evaluations (below 1: a share of the stage); None: no evaluation within the stage.
        autocast: train with bfloat16 autocast, unless the stage sets `bf16` or `fp16`.

    Raises:
        ValueError: wrong or incompatible settings, or a global batch that the number of processes does not divide.
    """
    checked = check_fields(TRAINING, stage.training, path=("stages", stage.name, "training"))
    arguments = checked.model_dump(exclude_unset=True)
    if stage.batch is not None:
        if not isinstance(objective, EmbeddingObjective):
            raise ValueError(
                f"stage {stage.name}: batch.size is the global batch of a contrastive objective; "
                f"{type(objective).__name__.lower()} takes training.per_device_train_batch_size"
            )
        if "per_device_train_batch_size" in arguments:
            raise ValueError(f"stage {stage.name}: give batch.size or training.per_device_train_batch_size, not both")
        if stage.batch.size % world_size():
            raise ValueError(
                f"stage {stage.name}: batch.size={stage.batch.size} is not divisible by {world_size()} processes"
            )
        arguments["per_device_train_batch_size"] = stage.batch.size // world_size()
    if autocast and not {"bf16", "fp16"} & arguments.keys():
        arguments["bf16"] = True
    arguments["dataloader_drop_last"] = drops_last(stage, objective)
    if objective.skips_layers:
        arguments.setdefault("ddp_find_unused_parameters", True)
    if every is not None:
        arguments |= {"eval_strategy": "steps", "eval_steps": every}
    try:
        args = StageArguments(
            output_dir=os.path.join(os.curdir, output_dir),  # noqa: PTH118 -- a leading ~ would be the home folder
            seed=seed,
            data_seed=seed,
            remove_unused_columns=False,
            label_names=[],
            **DEFAULTS | _for_this_machine() | arguments,
        )
        if args.max_steps > 0:  # a number of epochs is one of steps once the rows are read
            args.check_keep(args.max_steps)
        return args
    except (TypeError, ValueError) as error:
        raise ValueError(f"stage {stage.name}: training: {error}") from None


def drops_last(stage: StageConfig, objective: Objective) -> bool:
    """Return whether the rows of an epoch that do not fill a batch are left out: by default, where it is compared."""
    return bool(stage.training.get("dataloader_drop_last", isinstance(objective, EmbeddingObjective)))


def check_fills_batch(stage: StageConfig, rows: int, needed: int) -> None:
    """Raise ValueError where a stage has fewer rows than a batch that must be full, of all processes together."""
    if rows < needed:
        raise ValueError(f"stage {stage.name}: {rows} rows, fewer than one batch of {needed}; lower batch.size")


def _for_this_machine() -> dict[str, Any]:
    """Return the arguments for the machine's kind.

    With an accelerator, copies of batches are not waited for, and a GPU that has TF32 uses it; without one: the gloo
    backend, and no pinned memory.
    """
    if torch.accelerator.is_available():
        fast = {"tf32": True} if is_torch_tf32_available() else {}
        return {"accelerator_config": {"non_blocking": True}, **fast}
    return {"use_cpu": True, "dataloader_pin_memory": False} | ({"ddp_backend": "gloo"} if world_size() > 1 else {})
