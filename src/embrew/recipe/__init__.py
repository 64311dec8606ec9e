"""Recipes: an encoder and the stages that train it, as validated data. Importing this package does not import torch."""

from embrew.recipe.encoder import EncoderConfig, MaxLengthConfig, PromptsConfig
from embrew.recipe.evaluation import DevRows, EvaluationConfig, UniformityConfig
from embrew.recipe.recipe import Recipe, launch_command, list_launches, list_recipes, read_launch, read_recipe
from embrew.recipe.stage import BatchConfig, DataConfig, MixConfig, StageConfig

__all__ = [
    "BatchConfig",
    "DataConfig",
    "DevRows",
    "EncoderConfig",
    "EvaluationConfig",
    "MaxLengthConfig",
    "MixConfig",
    "PromptsConfig",
    "Recipe",
    "StageConfig",
    "UniformityConfig",
    "launch_command",
    "list_launches",
    "list_recipes",
    "read_launch",
    "read_recipe",
]
