"""Build the encoder of a recipe, and open the one that a stage starts from; dtypes of weights and matrix products."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from transformers import set_seed

from embrew.encoder import Encoder
from embrew.identity import active_adapter, sorted_names
from embrew.methods import Objective
from embrew.model.attention import Attention
from embrew.model.center import NO_TEXTS, uncentered
from embrew.model.kernels import use_own_sdpa
from embrew.model.weights import cast_weights, train_in_float32
from embrew.recipe.recipe import Recipe
from embrew.recipe.stage import StageConfig
from embrew.storage.base_model import known_name, pick_device, pick_dtype, supports_natively
from embrew.storage.loading import read_settings

logger = logging.getLogger(__name__)


def encoder(recipe: Recipe, *, device: str | torch.device | None = None) -> Encoder:
    """Return the untrained encoder of a recipe; if the recipe has stages, with a new LoRA attached."""
    config = recipe.encoder
    if config.pooling.center and not recipe.stages:
        raise ValueError(f"encoder.pooling.center without stages: {NO_TEXTS}")
    if config.variants is not None:
        raise ValueError("encoder.variants goes with evaluate, encode, search and data mine; leave it out here")
    built = Encoder.from_pretrained(
        config.model,
        adapter=config.adapter,
        revision=config.revision,
        dtype=opening_dtype(recipe, device),
        device=device,
        attn_implementation=config.attn_implementation,
        memory_tokens=config.memory_tokens,
        memory_init=config.memory_init if isinstance(config.memory_init, str) else dict(config.memory_init),
        soft_prompt_tokens=config.soft_prompt_tokens or 0,
        trust_remote_code=config.trust_remote_code,
        seed=recipe.seed,
        quantization=config.quantization,
        settings=config.settings.uncentered,
    )
    if recipe.stages:
        if built.settings.words_after == "joined":
            logger.warning(
                "template=%r is one string with the text, which a stock folder cannot reproduce; set "
                "encoder.words_after=separate before training what is to be exported",
                built.template.pattern,
            )
        _make_trainable(built, recipe, 0)
    built.recipe = recipe.public().to_yaml()
    return built


def check_same_encoder(recipe: Recipe, opened: Encoder, source: Path) -> None:
    """Raise if a trained encoder, from which a recipe starts, has other settings for texts than the recipe."""
    config = recipe.encoder
    learned_ids = {"memory_tokens": opened.backbone.memory_ids, "soft_prompt_tokens": opened.backbone.soft_prompt_ids}
    settings_pairs = config.settings.uncentered.differences(opened.settings)
    settings_pairs |= {key: (getattr(config, key) or 0, len(ids)) for key, ids in learned_ids.items()}
    quantization = opened.base.quantization if opened.backbone.is_quantized else None
    settings_pairs["quantization"] = (
        config.quantization and config.quantization.as_dict(),
        quantization and quantization.as_dict(),
    )
    differing = [
        f"encoder.{key}={ours!r}, there {theirs!r}" for key, (ours, theirs) in settings_pairs.items() if ours != theirs
    ]
    if differing:
        raise ValueError(
            f"{source} differs from the recipe's encoder: {'; '.join(differing)}; set these keys to the same values"
        )


def starting_encoder(recipe: Recipe, index: int, source: Path | None, *, device: torch.device) -> Encoder:
    """Open the encoder that stage `index` starts from; its adapter is continued or merged.

    Args:
        recipe: recipe of the run.
        index: index of the stage.
        source: folder of the encoder; None: the recipe's language model.
        device: device of the encoder.

    Raises:
        ValueError: the first stage's `source` has another template, attention or pooling than the recipe; or it carries
            an adapter, and the recipe trains all weights.
    """
    set_seed(recipe.seed)
    if source is None:
        return encoder(recipe, device=device)
    opened = Encoder.from_pretrained(
        source,
        dtype=opening_dtype(recipe, device, source=source),
        device=device,
        attn_implementation=recipe.encoder.attn_implementation,
        merge_adapter=recipe.stages[index].adapter == "merge",
        trust_remote_code=recipe.encoder.trust_remote_code,
    )
    if opened.center is not None:
        logger.info("%s  the mean that it subtracts (pooling.center) is left out of training", source)
        opened = uncentered(opened)
    if opened.base.kind == "folder" and opened.base_folder is None:  # all its weights are trained
        opened.base_folder = Path(known_name(recipe.encoder.model))
    if not index:
        check_same_encoder(recipe, opened, source)
        opened.recipe = recipe.public().to_yaml()
    if not isinstance(opened.backbone.model, PeftModel):
        _make_trainable(opened, recipe, index)
    elif recipe.encoder.lora is not None:
        if not index:
            _warn_of_lora(recipe.encoder.lora, opened, source)
    else:
        raise ValueError(
            f"{source} carries an adapter, and the recipe trains all weights (it has no encoder.lora); set "
            "adapter: merge in the stage, so that the adapter becomes part of them, or give encoder.lora to continue it"
        )
    return opened


def _warn_of_lora(lora: Mapping[str, Any], opened: Encoder, source: Path) -> None:
    """Warn where the adapter that is continued is not that of the recipe."""
    adapter = active_adapter(opened) or {}
    differing = {key: adapter.get(key) for key, value in lora.items() if sorted_names(value) != adapter.get(key)}
    if differing.get("target_modules") and lora["target_modules"] == "all-linear":
        del differing["target_modules"]  # their names
    if differing:
        logger.warning(
            "%s  its adapter is continued as it is (%s), not as encoder.lora says; to train a new one, set adapter: "
            "merge in the stage",
            source,
            ", ".join(f"{key}: {value}" for key, value in differing.items()),
        )


def _make_trainable(opened: Encoder, recipe: Recipe, index: int) -> None:
    """Attach a new LoRA; or make all weights trainable, if the recipe has no LoRA (full fine-tuning).

    `train_embeddings: full` applies only to stages that train the memory tokens too (the first one in the paper).
    """
    if recipe.encoder.lora is None:
        opened.backbone.train_all()
        opened.merged_adapters = []  # merged adapters are part of the weights that are saved
    else:
        full_embeddings = recipe.encoder.train_embeddings == "full" and recipe.stages[index].train_memory
        opened.backbone.add_lora(recipe.encoder.lora, train_embeddings=full_embeddings)


def prepare_encoder(encoder: Encoder, recipe: Recipe, index: int, objective: Objective) -> None:
    """Set attention, `requires_grad` and dtypes for stage `index`, and let its objective set up the encoder."""
    encoder.train()
    stage = recipe.stages[index]
    for later_stage in recipe.stages[index:]:  # an unsupported attention is found before anything is trained
        if later_stage.attention is not None:
            encoder.backbone.check_attention(Attention(later_stage.attention))
    if stage.attention is not None:
        encoder.use_attention(stage.attention)
    for learned_vectors in encoder.backbone.learned.values():
        learned_vectors.requires_grad_(stage.train_memory)
    objective.setup(encoder)
    use_own_sdpa(encoder.backbone.inner)
    train_in_float32(encoder)
    frozen_lm = encoder.backbone.frozen_copy
    if frozen_lm is not None and encoder.backbone.trains_all and autocasts(recipe, encoder.device):
        cast_weights(frozen_lm, torch.bfloat16)  # it is never trained


def opening_dtype(recipe: Recipe, device: str | torch.device | None = None, *, source: Path | None = None) -> str:
    """Return the dtype to open a recipe's model in: float32 if every weight is trained, else the recipe's.

    Weights that an earlier stage trained in float32 stay float32 under a LoRA too: rounding to bfloat16 would revert
    most of their changes.

    Args:
        recipe: recipe of the run.
        device: device of the model.
        source: folder of the saved encoder, if one is opened.

    Raises:
        ValueError: the recipe's dtype is only emulated by the device.
    """
    dtype = pick_dtype(recipe.encoder.dtype, pick_device(device))
    if recipe.stages and recipe.encoder.lora is None:  # every weight is trained
        return "float32"
    settings = {} if source is None else read_settings(source)
    if settings.get("full_weights") and settings["dtype"] == "float32" and dtype.itemsize < 4:
        logger.info("%s holds weights trained in float32; they stay float32 under the LoRA", source)
        return "float32"
    return recipe.encoder.dtype


def autocasts(recipe: Recipe, device: str | torch.device | None = None) -> bool:
    """Return whether training uses bfloat16 autocast, for stages that set neither `bf16` nor `fp16`.

    It does so if `dtype` is bfloat16. With `auto`, it does so on a GPU; and on a CPU with AVX512-BF16, AMX or ARM's
    BF16 if a LoRA is trained: full fine-tuning is not faster there. Trained weights, losses, norms and the optimiser
    stay in float32.
    """
    if not recipe.stages:
        return False
    target = pick_device(device)
    if recipe.encoder.dtype == "auto":
        return supports_natively(torch.bfloat16, target) and not (target.type == "cpu" and recipe.encoder.lora is None)
    return pick_dtype(recipe.encoder.dtype, target) == torch.bfloat16


Arithmetic = Literal["float32", "bfloat16", "float16"]


def compute_dtype(recipe: Recipe, stage: StageConfig, device: str | torch.device | None = None) -> Arithmetic:
    """Return the dtype of a stage's matrix products: that of autocast, or float32 without it."""
    training = stage.training
    if training.get("fp16"):
        return "float16"
    uses_bfloat16 = training.get("bf16") if {"bf16", "fp16"} & training.keys() else autocasts(recipe, device)
    return "bfloat16" if uses_bfloat16 else "float32"
