"""The encoder that a recipe describes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from peft import PeftModel

from embrew.build.precision import opening_dtype
from embrew.modeling.embedding.pooling import Pooling
from embrew.modeling.encoder import Encoder
from embrew.modeling.settings.demonstrations import Demonstrations
from embrew.modeling.text.pattern import check_words_after
from embrew.recipe import Recipe

logger = logging.getLogger(__name__)


def encoder(recipe: Recipe, *, device: Any = None) -> Encoder:
    """The untrained encoder of a recipe; with its LoRA attached where the recipe has stages."""
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
        template=config.template,
        preparation=config.preparation,
        memory_ratio=config.memory_ratio,
        words_after=config.words_after,
        attention=config.attention,
        pooling=Pooling(**config.pooling.model_dump()),
        prompts=config.prompts.model_dump(),
        default_prompt_name=config.default_prompt_name,
        max_length=config.max_length.model_dump(),
        normalize=config.normalize,
        demonstrations=config.demonstrations and Demonstrations(**config.demonstrations.model_dump()),
    )
    if recipe.stages:
        if built.template.words_after == "joined":
            logger.warning(
                "template=%r is one string with the text, which a stock folder cannot reproduce; set "
                "encoder.words_after=separate before training what is to be exported",
                built.template.pattern,
            )
        make_trainable(built, recipe)
    built.recipe = recipe.public().to_yaml()
    return built


def check_same_encoder(recipe: Recipe, opened: Encoder, source: Path) -> None:
    """Raise where a trained encoder that a recipe is to go on from reads texts in another way than the recipe says."""
    config = recipe.encoder
    asked: dict[str, Any] = {
        "default_prompt_name": config.default_prompt_name,
        "template": config.template,
        "preparation": config.preparation,
        "memory_ratio": config.memory_ratio,
        "words_after": check_words_after(config.words_after, config.templates),
        "attention": config.attention,
        "pooling": config.pooling.model_dump(exclude_none=True),
        "prompts": config.prompts.model_dump(),
        "max_length": config.max_length.model_dump(),
        "normalize": config.normalize,
        "demonstrations": config.demonstrations and Demonstrations(**config.demonstrations.model_dump()).as_dict(),
    }
    unset = {"preparation": "none", "memory_ratio": None, "words_after": "separate"}
    unset |= {"default_prompt_name": None, "demonstrations": None}
    has = {**unset, **opened.settings()}
    pairs = {
        **{key: (value, has[key]) for key, value in asked.items()},
        "memory_tokens": (config.memory_tokens, len(opened.backbone.memory_ids)),
        "soft_prompt_tokens": (config.soft_prompt_tokens or 0, len(opened.backbone.soft_prompt_ids)),
    }
    differing = [f"encoder.{key}={ours!r}, there {theirs!r}" for key, (ours, theirs) in pairs.items() if ours != theirs]
    if differing:
        raise ValueError(f"{source} is another encoder than the recipe's: {'; '.join(differing)}; let them agree")


def carries_on(opened: Encoder, recipe: Recipe, source: Path) -> bool:
    """Whether a trained encoder carries an adapter that a stage continues.

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
        built.chain = []  # what was merged is part of the weights that are saved now
    else:
        full = recipe.encoder.train_embeddings == "full" and recipe.stages[stage].train_memory
        built.backbone.add_lora(recipe.encoder.lora, train_embeddings=full)
