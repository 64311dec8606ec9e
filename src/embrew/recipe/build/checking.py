"""Checks of a recipe that need no model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch import nn
from transformers import TrainingArguments, get_scheduler
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from embrew.data.columns import ACCEPTED
from embrew.files.formats import GAP
from embrew.methods import Objective
from embrew.model.adapters import check_for_quantized, check_library, lora_config
from embrew.recipe.build.rows import batches_of
from embrew.recipe.build.stages import objective, training_arguments
from embrew.recipe.encoder import LORA_REFUSED, LORA_TYPES
from embrew.recipe.recipe import Recipe
from embrew.recipe.stage import StageConfig
from embrew.settings.validation import check_fields, fields_model
from embrew.storage.foreign import check_is_model

TORCH_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")
TARGETED_OPTIMIZERS = ("galore", "apollo")  # prefixes of optimisers that need optim_target_modules
CHECKED_STEPS = 1000  # maximum number of steps at which a schedule is checked
_PER_LAYER = ("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw")
_SEVERAL = "gradient caching and accumulation run several per step"
_NO_LOSS = "needs an evaluation loss, and embrew evaluates by scores"
UNSUPPORTED: dict[str, dict[str, str]] = {
    "optim": {
        **dict.fromkeys(("lomo", "adalomo"), f"updates the weights in the backward pass; {_SEVERAL}"),
        **{f"{name}_layerwise": f"updates each layer in the backward pass; {_SEVERAL}" for name in _PER_LAYER},
    },
    "lr_scheduler_type": dict.fromkeys(("reduce_lr_on_plateau", "greedy"), _NO_LOSS),
}
LORA = fields_model(LoraConfig, LORA_TYPES, LORA_REFUSED)


def check_recipe(recipe: Recipe, *, here: bool = False) -> None:
    """Build everything that a recipe describes except the model: LoRA, each stage's objective and trainer settings.

    Args:
        recipe: the recipe to check.
        here: also raise for packages and dtypes that this machine lacks; otherwise, a recipe for a GPU is accepted on
            any machine.

    Raises:
        ValueError: the recipe cannot be trained; the message has the key, the value and the allowed values.
    """
    check_is_model(recipe.encoder.model, Path(recipe.encoder.model))
    implementation = recipe.encoder.attn_implementation
    implementations = ["eager", *ALL_ATTENTION_FUNCTIONS.keys()]
    is_hub_kernel = "/" in (implementation or "")
    if implementation is not None and implementation not in implementations and not is_hub_kernel:
        raise ValueError(f"encoder.attn_implementation={implementation!r}; choose from {', '.join(implementations)}")
    if recipe.encoder.lora is not None:
        check_fields(LORA, recipe.encoder.lora, path=("encoder", "lora"))
        try:
            lora_config(recipe.encoder.lora)
            if recipe.encoder.quantization is not None:
                check_for_quantized(recipe.encoder.lora)
        except ValueError as error:
            raise ValueError(f"encoder.{error}") from None
    if here and recipe.encoder.quantization is not None:
        check_library()
    for index in range(len(recipe.stages)):
        check_stage(recipe, index, here=here)


def check_stage(recipe: Recipe, index: int, *, here: bool = False) -> None:
    """Build a stage's objective, `TrainingArguments`, optimiser and schedule; arguments as `check_recipe`.

    Raises:
        ValueError: one of them cannot be built, or they are incompatible.
    """
    stage = recipe.stages[index]
    for key, names in UNSUPPORTED.items():
        value = stage.training.get(key)
        if value in list(names):
            raise ValueError(f"stages.{stage.name}.training.{key}={value!r} {names[value]}; choose another")
    built = objective(stage.objective, path=("stages", stage.name, "objective"))
    check_matches(recipe, index, built)
    evaluation = recipe.stage_evaluation(index)
    chosen_by = None if evaluation is None or evaluation.every is None else evaluation.metric
    if chosen_by == GAP and not built.held_out:
        raise ValueError(
            f"stage {stage.name}: evaluation.metric={GAP}, the share of the gap closed, exists where the objective is "
            "compression with held_out above 0; name such stages in evaluation.stages, or choose another metric"
        )
    every, portable = None if evaluation is None else evaluation.every, stage
    if not here:  # without the settings that fail only because this machine has no GPU
        training = {key: value for key, value in stage.training.items() if key != "tf32" or not isinstance(value, bool)}
        portable = stage.model_copy(update={"training": {"use_cpu": True, **training}})
    args = training_arguments(portable, built, Path(stage.name), seed=recipe.seed, every=every)
    _check_optimizer(stage, args, here=here)
    _check_schedule(stage, args)


def _check_optimizer(stage: StageConfig, args: TrainingArguments, *, here: bool) -> None:
    name = str(args.optim.value if hasattr(args.optim, "value") else args.optim)
    key_path = f"stages.{stage.name}.training.optim"
    if name.startswith(TARGETED_OPTIMIZERS) != bool(args.optim_target_modules):
        raise ValueError(
            f"{key_path}_target_modules={args.optim_target_modules!r} with optim={name!r}; required by galore and "
            "apollo optimisers, not allowed with others"
        )
    if any(part.count("=") != 1 for part in (args.optim_args or "=").split(",")):
        raise ValueError(
            f"{key_path}_args={args.optim_args!r}; write name=value, and commas between several, as in "
            "beta3=0.999,alpha=5.0"
        )
    if name in ("adamw_torch", "adamw_torch_fused") and not args.optim_args:
        return  # always available; the Trainer's check imports pandas, in half a second
    from transformers import Trainer

    try:
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args, nn.Linear(1, 1))  # type: ignore[arg-type]
        if name in TORCH_OPTIMIZERS:
            kind([nn.Parameter(torch.zeros(1))], **options)
    except ImportError as error:
        if here:
            raise ValueError(f"{key_path}={name!r}: {error}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key_path}={name!r}: {error}") from None


def _check_schedule(stage: StageConfig, args: TrainingArguments) -> None:
    """Raise unless the schedule's learning rates are finite, not negative, and not all 0."""
    key_path, kwargs = f"stages.{stage.name}.training.", dict(stage.training.get("lr_scheduler_kwargs") or {})
    steps = args.max_steps if args.max_steps > 0 else CHECKED_STEPS
    optimizer: Any = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    try:
        schedule = get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=kwargs,
        )
        checked_steps = range(0, steps, math.ceil(steps / CHECKED_STEPS))
        rates = [args.learning_rate * float(rate(step)) for step in checked_steps for rate in schedule.lr_lambdas]
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        raise ValueError(f"{key_path}lr_scheduler_kwargs={kwargs} with lr_scheduler_type={name!r}: {error}") from None
    invalid = next((rate for rate in rates if not math.isfinite(rate) or rate < 0), None)
    if invalid is not None:
        raise ValueError(
            f"{key_path}lr_scheduler_kwargs={kwargs} give a learning rate of {invalid:g}; it must be 0 or more"
        )
    if args.max_steps > 0 and not any(rates):
        raise ValueError(
            f"{key_path}warmup_steps={args.warmup_steps:g} with max_steps={args.max_steps}: the learning rate is 0 at "
            "every step; lower warmup_steps"
        )


def check_matches(recipe: Recipe, index: int, built: Objective) -> None:
    """Raise if stage `index` cannot be trained with the recipe's encoder, or cannot read its data.

    Raises:
        ValueError: names what the objective needs, and the key that sets it.
    """
    stage, encoder = recipe.stages[index], recipe.encoder
    stage_path = f"stages.{stage.name}"
    for key, config in stage.placed_datasets:
        key_path = f"{stage_path}.{key}"
        columns = ACCEPTED[built.rows_kind]
        for column in config.columns:
            if column not in columns:
                raise ValueError(
                    f"{key_path}.columns.{column}: not a {built.rows_kind} column; choose from {', '.join(columns)}"
                )
        if config.instructions and built.rows_kind != "pairs":
            raise ValueError(f"{key_path}.instructions are for pairs, not {built.rows_kind} rows; leave them out")
        if config.instructions and config.instruct == "both" and batches_of(stage, built) == "mixed":
            raise ValueError(
                f"{key_path}.instructions with instruct: both in mixed batches: each row has its own, which would tell "
                "a query's positive from others; set mix: {batches: one}, or instruct: query"
            )
        if config.instructions and built.single_instruction is not None:
            raise ValueError(f"{key_path}.instructions with {built.single_instruction}")
        if config.sentences and built.rows_kind not in ("text", "pairs"):
            raise ValueError(
                f"{key_path}.sentences=True is for text rows and pairs, not {built.rows_kind} rows; leave it out"
            )
    attention = next(
        (stage.attention for stage in reversed(recipe.stages[: index + 1]) if stage.attention), encoder.attention
    )
    if attention == "memory_causal" and not encoder.memory_tokens:
        raise ValueError(f"{stage_path}.attention='memory_causal' with encoder.memory_tokens=0; it needs memory tokens")
    settings = encoder.settings.replace(attention=attention)
    nested: Objective | None = built
    while nested is not None:
        try:
            nested.check_encoder(settings, encoder.memory_tokens)
        except ValueError as error:
            raise ValueError(f"{stage_path}.objective: {type(nested).__name__}: {error}") from None
        nested = getattr(nested, "base", None)
