"""The encoder that a recipe describes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from peft import PeftModel

from embrew.assembly.precision import opening_dtype
from embrew.encoder import Encoder
from embrew.recipe import Recipe

logger = logging.getLogger(__name__)


def encoder(recipe: Recipe, *, device: Any = None) -> Encoder:
    """Return the untrained encoder of a recipe; with its LoRA attached where the recipe has stages."""
    config = recipe.encoder
    built = Encoder.from_pretrained(
        config.model,
        revision=config.revision,
        dtype=opening_dtype(recipe, device),
        device=device,
        attn_implementation=config.attn_implementation,
        memory_tokens=config.memory_tokens,
        memory_init=config.memory_init,
        soft_prompt_tokens=config.soft_prompt_tokens or 0,
        trust_remote_code=config.trust_remote_code,
        seed=recipe.seed,
        quantization=config.quantization,
        settings=config.settings,
    )
    if recipe.stages:
        if built.settings.words_after == "joined":
            logger.warning(
                "template=%r is one string with the text, which a stock folder cannot reproduce; set "
                "encoder.words_after=separate before training what is to be exported",
                built.template.pattern,
            )
        make_trainable(built, recipe)
    built.recipe = recipe.public().to_yaml()
    return built


def check_same_encoder(recipe: Recipe, opened: Encoder, source: Path) -> None:
    """Raise if a trained encoder, from which a recipe starts, has other settings for texts than the recipe."""
    config = recipe.encoder
    learned = {"memory_tokens": opened.backbone.memory_ids, "soft_prompt_tokens": opened.backbone.soft_prompt_ids}
    pairs = config.settings.differences(opened.settings)
    pairs |= {key: (getattr(config, key) or 0, len(ids)) for key, ids in learned.items()}
    made = opened.base.quantization if opened.backbone.is_quantized else None
    pairs["quantization"] = config.quantization and config.quantization.as_dict(), made and made.as_dict()
    differing = [f"encoder.{key}={ours!r}, there {theirs!r}" for key, (ours, theirs) in pairs.items() if ours != theirs]
    if differing:
        raise ValueError(
            f"{source} differs from the recipe's encoder: {'; '.join(differing)}; set these keys to the same values"
        )


def carries_on(opened: Encoder, recipe: Recipe, source: Path) -> bool:
    """Return whether a trained encoder carries an adapter that a stage continues.

    Raises:
        ValueError: it does, and the recipe trains all weights.
    """
    if not isinstance(opened.backbone.model, PeftModel):
        return False
    if recipe.encoder.lora is None:
        raise ValueError(
            f"{source} carries an adapter, and the recipe trains all weights (it has no encoder.lora); set "
            "adapter: merge in the stage, so that the adapter becomes part of them, or give encoder.lora to continue it"
        )
    return True


def make_trainable(built: Encoder, recipe: Recipe, *, stage: int = 0) -> None:
    """Attach a fresh LoRA, or open every weight for full fine-tuning where the recipe has none.

    `train_embeddings: full` holds for stages that train the memory tokens as well (the paper's first).
    """
    if recipe.encoder.lora is None:
        built.backbone.train_all()
        built.chain = []  # merged adapters are part of the weights that are saved
    else:
        full = recipe.encoder.train_embeddings == "full" and recipe.stages[stage].train_memory
        built.backbone.add_lora(recipe.encoder.lora, train_embeddings=full)
