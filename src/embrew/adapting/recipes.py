"""The recipes of an adaptation: untrained encoders, and models to train with the steps that fit into the minutes."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from datasets import concatenate_datasets

from embrew.adapting.defaults import Defaults, Keys, ModelDefaults, StageDefaults
from embrew.adapting.preparation.prepare import Prepared
from embrew.encoder import Encoder
from embrew.files.names import public_path
from embrew.files.writing import atomic_path
from embrew.methods.base import DataRow
from embrew.opening import POOLINGS
from embrew.recipe import DataConfig, Recipe, build
from embrew.recipe.build.encoders import compute_dtype
from embrew.recipe.build.stages import objective_keys
from embrew.recipe.overrides import Override, apply_overrides, as_text, parse_override
from embrew.recipe.recipe import with_paths
from embrew.recipe.stage import StageConfig
from embrew.settings.encoder import EncoderSettings
from embrew.settings.yaml_files import dump_yaml
from embrew.storage.base_model import pick_device
from embrew.training.step import MiniBatchSize, TrainStep

LEAST_LENGTH, SHARE, SPARE = 16, 0.98, 4  # tokens; share of texts that are not truncated; tokens for BOS, EOS and joins
MODEL_KEYS = ("revision", "dtype", "attn_implementation", "trust_remote_code", "adapter", "max_length")
"""Keys of `encoder` whose overrides untrained encoders take too."""
T = TypeVar("T")
LONG_ENOUGH = 3.0  # seconds of a measured step from which the time is taken to grow with the rows


def text_lengths(encoder: Encoder, data: Prepared, longest: int) -> dict[str, int]:
    """Return the number of tokens that 98 % of the queries, and of the documents, have, rounded up to eights."""
    lengths = {}
    for side, texts in data.texts().items():
        counts = sorted(len(ids) for ids in encoder.tokenizer(texts, add_special_tokens=False)["input_ids"])
        quantile = counts[math.ceil(SHARE * len(counts)) - 1]
        lengths[side] = min(max(8 * math.ceil(quantile / 8), LEAST_LENGTH), longest)
    return lengths


def with_limits(values: Keys, lengths: Mapping[str, int], encoder: Encoder) -> Keys:
    """Return keys of `encoder` with limits that leave `lengths` tokens to a text, besides its template and prompt.

    Limits that are there are not exceeded: they are those of a model that is an encoder already.
    """
    pattern, prompts = str(values["template"]), values.get("prompts") or {}
    copies = pattern.count("{text}") + pattern.count("{echo}")
    for placeholder in ("{text}", "{echo}", "{memory}", "{eos}", "{end}"):
        pattern = pattern.replace(placeholder, " ")
    earlier = values.get("max_length") or {}
    limits = dict(earlier)
    for side, length in lengths.items():
        words = pattern.replace("{instruction}", prompts.get(side) or "")
        around = len(encoder.tokenizer(words, add_special_tokens=False)["input_ids"])
        wanted = copies * length + around + values.get("memory_tokens", 0) + SPARE
        limits[side] = int(min(wanted, encoder.backbone.max_positions, earlier.get(side, wanted)))
    return {**values, "max_length": limits}


def untrained_recipe(
    model: str,
    pooling: str,
    *,
    overrides: Sequence[Override],
    seed: int,
    lengths: Mapping[str, int] | None = None,
    encoder: Encoder | None = None,
) -> Recipe:
    """Return the recipe of a baseline of `POOLINGS`, with the limits of the trained models.

    Args:
        model: name of the language model.
        pooling: name of the baseline.
        overrides: of recipes; those of the language model apply.
        seed: of the recipe.
        lengths: from `text_lengths`; None: the baseline's own limits.
        encoder: any encoder of this model, to count the tokens of the template.
    """
    values = Recipe.load(POOLINGS[pooling]).model_dump(mode="json", exclude_unset=True)["encoder"]
    values |= {"model": model, "dtype": _dtype(model, overrides)}
    if lengths is not None and encoder is not None:
        values = with_limits({key: value for key, value in values.items() if key != "max_length"}, lengths, encoder)
    of_encoder = [text for text in overrides if parse_override(text)[0][:1] == ["encoder"]]
    of_model = [text for text in of_encoder if parse_override(text)[0][1] in MODEL_KEYS]
    return Recipe.from_values(apply_overrides({"encoder": values, "seed": seed}, of_model), overrides=of_model)


def _dtype(model: str, overrides: Sequence[Override]) -> str:
    """Return the dtype in which a LoRA on this model would be trained here, so that both are scored alike."""
    encoder = {"model": model, "pooling": {"mode": "mean"}, "lora": {"r": 1}}
    stage = {"name": "s", "objective": {"type": "contrastive", "positives": "column"}, "data": {"path": "x"}}
    chosen = [text for text in overrides if parse_override(text)[0] == ["encoder", "dtype"]]
    recipe = Recipe.from_values(apply_overrides({"encoder": encoder, "stages": [stage]}, chosen))
    return "bfloat16" if compute_dtype(recipe, recipe.stages[0]) == "bfloat16" else recipe.encoder.dtype


def with_recipe_settings(encoder: Encoder, recipe: Recipe) -> Encoder:
    """Return an untrained encoder with the settings of a recipe, on the weights of another one of the same model."""
    settings = recipe.encoder.settings
    return encoder.with_settings(**{name: getattr(settings, name) for name in EncoderSettings.model_fields})


def training_recipe(
    model: str,
    chosen: ModelDefaults,
    data: Prepared,
    *,
    defaults: Defaults,
    lengths: Mapping[str, int],
    encoder: Encoder,
    overrides: Sequence[Override],
    seed: int,
    steps: Sequence[int] | None = None,
    evaluations: int = 1,
) -> Recipe:
    """Return the recipe of a model to train; without `steps`, with one step per stage.

    Args:
        model: name of the language model.
        chosen: encoder and stages.
        data: what it is trained on, and its dev set.
        defaults: batches, and the LoRA.
        lengths: from `text_lengths`.
        encoder: any encoder of this model.
        overrides: of recipes; those of stages of other recipes have no effect.
        seed: of the recipe.
        steps: of each stage.
        evaluations: on dev, within the last stage; two or more.

    Raises:
        ValueError: an override that does not fit.
    """
    encoder_values = {"lora": defaults.lora, **with_limits(chosen.encoder, lengths, encoder), "model": model}
    stages = []
    for index, stage in enumerate(chosen.stages):
        config, objective = stage_source(stage, data)
        stage_values = {**stage.stage, "objective": objective, "data": config}
        stage_values["training"] = {**stage.stage["training"], "max_steps": 1 if steps is None else steps[index]}
        if "per_device_train_batch_size" not in stage_values["training"]:
            stage_values["batch"] = {**defaults.batch, "size": min(defaults.batch["size"], row_count(stage, data))}
        stages.append(stage_values)
    dev: Keys = {"dev": [str(data.dev.resolve())], "batch_tokens": defaults.batch_tokens}
    if steps is not None:
        dev |= {"every": 1 / max(evaluations, 2), "stages": [stages[-1]["name"]]}
    values = {"encoder": encoder_values, "stages": stages, "evaluation": dev, "seed": seed}
    return recipe_with(values, _of_stages(overrides, {stage["name"] for stage in stages}))


def recipe_with(values: Keys, overrides: Sequence[Override]) -> Recipe:
    """Return a recipe with overrides; a warm-up that is a share of the steps becomes a number of steps.

    It is rounded down, so that the first of few steps has a rate above 0.

    Raises:
        ValueError: an override that does not fit.
    """
    overridden = apply_overrides(values, overrides, objective_keys)
    Recipe.from_values(overridden, overrides=overrides)  # every stage has a mapping `training`
    for stage in overridden["stages"]:
        training = stage["training"]
        share, steps = training.get("warmup_steps"), training.get("max_steps")
        if isinstance(share, float) and 0 < share < 1 and isinstance(steps, int):  # `check_recipe` names other types
            training["warmup_steps"] = int(share * steps)
    return Recipe.from_values(overridden, overrides=overrides)


def load_written_recipe(file: Path, model: str, overrides: Sequence[Override]) -> Recipe:
    """Return a recipe that `write_recipe` wrote of `overrides`: paths outside the output folder are in these only."""
    names = {stage.name for stage in Recipe.load(file).stages}
    paths = [text for text in _of_stages(overrides, names) if parse_override(text)[0][2:3] != ["training"]]
    return Recipe.load(file, [("encoder.model", model), *paths])


def _of_stages(overrides: Sequence[Override], names: Collection[str]) -> list[Override]:
    """Return the overrides without those of other stages."""
    return [text for text in overrides if (key := parse_override(text)[0])[0] != "stages" or key[1] in names]


def stage_source(stage: StageDefaults, data: Prepared) -> tuple[Keys, Keys]:
    """Return the data and the objective of a stage."""
    rows, objective = stage.rows, stage.stage["objective"]
    passages = data.count("train_passages")
    if stage.below is not None and data.count("train_pairs") < stage.below.pairs and passages:
        rows, objective = stage.below.rows, stage.below.objective
    if rows == "texts" and passages:
        return {"path": str(data.passages.resolve())}, objective
    path = str((data.mined if rows == "pairs" and data.mined else data.pairs).resolve())
    if rows == "texts":
        return {"path": path, "columns": {"text": "positive"}}, objective
    without_made = rows == "own_pairs" and data.count("train_pairs")
    return {"path": path, **({"where": {"made": False}} if without_made else {})}, objective


def row_count(stage: StageDefaults, data: Prepared) -> int:
    """Return the number of rows that a stage learns from."""
    config, _ = stage_source(stage, data)
    if config["path"] == str(data.passages.resolve()):
        return data.count("train_passages")
    pairs = data.count("train_pairs")
    return pairs if "where" in config else pairs + data.count("made_pairs")


def check_one_process(command: str, output: str | Path, recipe: str, settings: Mapping[str, str]) -> None:
    """Raise where several processes were started, and name the command that trains the written recipe with them."""
    if (processes := os.environ.get("WORLD_SIZE", "1")) != "1":
        words = shlex.join([f"{output}/recipes/{recipe}.yaml", *map(as_text, settings.items())])
        raise ValueError(
            f"{processes} processes; {command} runs in one. Several train a recipe that it has written: "
            f"accelerate launch -m embrew train {words} --output DIR"
        )


def write_recipe(path: Path, recipe: Recipe, title: str, *, command: str = "adapt") -> None:
    """Write a recipe whose paths within the output folder are relative to it, with a title and the command."""
    inside = f"{path.parent.parent.resolve()}/"
    values = with_paths(
        recipe.model_dump(mode="json", exclude_defaults=True),
        lambda name: f"../{name.removeprefix(inside)}" if name.startswith(inside) else public_path(name),
    )
    path.parent.mkdir(exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(f"# {title} Written by embrew {command}.\n\n{dump_yaml(values)}", encoding="utf-8")


def steps_in_time(
    recipe: Recipe,
    choices: ModelDefaults,
    data: Prepared,
    defaults: Defaults,
    dev_seconds: float,
    step_seconds: Sequence[float],
) -> tuple[list[int], int]:
    """Return the steps of each stage and the number of evaluations that fit into the minutes.

    Args:
        recipe: with all settings but steps.
        choices: shares and epochs of its stages.
        data: the numbers of rows.
        defaults: minutes of training, with all evaluations on dev; and evaluations that are wanted within the last
            stage: fewer, if they would take more than half of the time.
        dev_seconds: time of one evaluation.
        step_seconds: time of a step of each stage.
    """
    minutes, others = defaults.minutes, len(recipe.stages)  # before training, and after each stage but the last
    fitting = max(1, math.floor(30 * minutes / max(dev_seconds, 1e-6)) - others)
    evaluations = min(defaults.evaluations, fitting)
    budget = max(60 * minutes - (others + evaluations) * dev_seconds, 30 * minutes)
    steps = []
    for stage, default, seconds in zip(recipe.stages, choices.stages, step_seconds, strict=True):
        limit = math.ceil(default.epochs * row_count(default, data) / rows_per_step(stage))
        steps.append(max(1, min(math.floor(default.share * budget / seconds), limit)))
    return steps, evaluations


def rows_per_step(stage: StageConfig) -> int:
    """Return the rows of an optimiser step, in one process."""
    rows: int = stage.batch.size if stage.batch else stage.training.get("per_device_train_batch_size", 8)
    return rows * int(stage.training.get("gradient_accumulation_steps", 1))


def seconds_per_step(recipe: Recipe, source: Path | None = None) -> Iterator[float]:
    """Yield the measured seconds of an optimiser step of each stage on this machine.

    Forward and backward passes over more and more rows, short and long ones, are timed until they take `LONG_ENOUGH`
    or are a whole batch.
    """
    encoder = build.starting_encoder(recipe, 0, source, device=pick_device(None))
    for index, stage in enumerate(recipe.stages):
        objective = build.objective(stage.objective)
        build.prepare_encoder(encoder, recipe, index, objective)
        size, parts = rows_per_step(stage), []
        for config in stage.datasets:
            few: DataConfig = config.model_copy(update={"shuffle_seed": recipe.seed})
            part = build.rows(few, objective, max_rows=size)
            parts.append(objective.precompute(objective.prepare(part, encoder), encoder, None))
        rows = sorted(concatenate_datasets(parts).to_list(), key=lambda row: len(str(row)))
        step = TrainStep(encoder, objective, MiniBatchSize.from_config(stage.batch))
        in_bfloat16 = compute_dtype(recipe, stage) == "bfloat16"
        count, seconds = 2, 0.0
        _forward_backward(step, spread(rows, count), in_bfloat16)  # the first one allocates
        while True:
            seconds = _forward_backward(step, spread(rows, count), in_bfloat16)
            if seconds >= LONG_ENOUGH or count >= min(size, len(rows)):
                break
            count = min(2 * count, size, len(rows))
        yield seconds * size / count


def spread(rows: Sequence[T], count: int) -> list[T]:
    """Return `count` of the rows, at equal distances, or all of fewer."""
    count = min(count, len(rows))
    return [rows[(2 * number + 1) * len(rows) // (2 * count)] for number in range(count)]


def _forward_backward(step: TrainStep, rows: Sequence[DataRow], in_bfloat16: bool) -> float:
    """Return the seconds of a forward and a backward pass over rows."""
    began = time.perf_counter()
    batch = step.objective.collate(rows, step.encoder, seed=0)
    with torch.autocast(step.encoder.device.type, torch.bfloat16, enabled=in_bfloat16):
        loss = step(**batch, progress=0.0)["loss"]
    loss.backward()
    step.zero_grad(set_to_none=True)
    if step.encoder.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - began
