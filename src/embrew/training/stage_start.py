"""What a stage starts from: its data, and the encoder and its preparation for training."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import set_seed

from embrew import assembly
from embrew.encoder import Encoder
from embrew.files.names import check_path_known
from embrew.methods import Objective
from embrew.model.attention import Attention
from embrew.model.precision import train_in_float32
from embrew.recipe import Recipe, StageConfig


def starting_encoder(recipe: Recipe, index: int, source: Path | None, *, device: torch.device) -> Encoder:
    """Open the encoder that stage `index` starts from; its adapter is continued or merged.

    Args:
        recipe: of the run.
        index: of the stage.
        source: folder of the encoder; None: the recipe's language model.
        device: of the encoder.

    Raises:
        ValueError: the first stage's `source` has another template, attention or pooling than the recipe.
    """
    set_seed(recipe.seed)
    if source is None:
        return assembly.encoder(recipe, device=device)
    encoder = Encoder.from_pretrained(
        source,
        dtype=assembly.opening_dtype(recipe, device, source=source),
        device=device,
        attn_implementation=recipe.encoder.attn_implementation,
        merge_adapter=recipe.stages[index].adapter == "merge",
        trust_remote_code=recipe.encoder.trust_remote_code,
    )
    if encoder.base.kind == "folder" and encoder.base_folder is None:  # all its weights are trained
        encoder.base_folder = Path(recipe.encoder.model)
    if not index:
        assembly.check_same_encoder(recipe, encoder, source)
        encoder.recipe = recipe.public().to_yaml()
    if not assembly.carries_on(encoder, recipe, source):
        assembly.make_trainable(encoder, recipe, stage=index)
    return encoder


def prepare_encoder(encoder: Encoder, recipe: Recipe, index: int, objective: Objective) -> None:
    """Set attention, trained parameters and dtypes for stage `index`."""
    encoder.train()
    stage = recipe.stages[index]
    for later in recipe.stages[index:]:  # before anything is trained
        if later.attention is not None:
            encoder.backbone.check_attention(Attention(later.attention))
    if stage.attention is not None:
        encoder.use_attention(stage.attention)
    for rows in encoder.backbone.learned.values():
        rows.requires_grad_(stage.train_memory)
    objective.setup(encoder)
    encoder.backbone.use_own_sdpa()
    train_in_float32(encoder)
    if encoder.backbone.trains_all and assembly.autocasts(recipe, encoder.device):
        encoder.backbone.round_frozen_lm(torch.bfloat16)


def check_data_paths(stage: StageConfig) -> None:
    """Raise if only the name of a path of a stage's data was saved."""
    several = isinstance(stage.data, list)
    for number, config in enumerate(stage.datasets):
        key = f"stages.{stage.name}.data.{number}.path" if several else f"stages.{stage.name}.data.path"
        for path in [config.path] if isinstance(config.path, str) else config.path:
            check_path_known(path, key)
