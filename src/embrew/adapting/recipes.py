"""The recipes of an adaptation: of untrained encoders, and of models to train."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embrew.adapting.defaults import Defaults, ModelDefaults, StageDefaults
from embrew.adapting.preparation.prepare import Prepared
from embrew.encoder import Encoder
from embrew.files.names import public_path
from embrew.files.writing import atomic_path
from embrew.opening import POOLINGS
from embrew.recipe import Recipe
from embrew.recipe.build.encoders import compute_dtype
from embrew.recipe.build.stages import objective_keys
from embrew.recipe.overrides import Override, apply_overrides, as_text, parse_override
from embrew.recipe.recipe import with_paths
from embrew.settings.encoder import EncoderSettings
from embrew.settings.yaml_files import dump_yaml

LEAST_LENGTH, SHARE, SPARE = 16, 0.98, 4  # tokens; share of texts that are not truncated; tokens for BOS, EOS and joins
MODEL_KEYS = ("revision", "dtype", "attn_implementation", "trust_remote_code", "adapter", "max_length")
"""Keys of `encoder` whose overrides untrained encoders take too."""


def text_lengths(encoder: Encoder, data: Prepared, longest: int) -> dict[str, int]:
    """Return the number of tokens that 98 % of the queries, and of the documents, have, rounded up to eights."""
    lengths = {}
    for side, texts in data.texts().items():
        counts = sorted(len(ids) for ids in encoder.tokenizer(texts, add_special_tokens=False)["input_ids"])
        quantile = counts[math.ceil(SHARE * len(counts)) - 1]
        lengths[side] = min(max(8 * math.ceil(quantile / 8), LEAST_LENGTH), longest)
    return lengths


def with_limits(values: Mapping[str, Any], lengths: Mapping[str, int], encoder: Encoder) -> dict[str, Any]:
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
    dev: dict[str, Any] = {"dev": [str(data.dev.resolve())], "batch_tokens": defaults.batch_tokens}
    if steps is not None:
        dev |= {"every": 1 / max(evaluations, 2), "stages": [stages[-1]["name"]]}
    values = {"encoder": encoder_values, "stages": stages, "evaluation": dev, "seed": seed}
    return recipe_with(values, _of_stages(overrides, {stage["name"] for stage in stages}))


def recipe_with(values: Mapping[str, Any], overrides: Sequence[Override]) -> Recipe:
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


def stage_source(stage: StageDefaults, data: Prepared) -> tuple[dict[str, Any], dict[str, Any]]:
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
