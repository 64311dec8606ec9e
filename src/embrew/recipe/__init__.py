"""Recipes: an encoder and the stages that train it, as checked data, without torch; `build` makes objects of them."""

from embrew.recipe.recipe import Recipe, list_launches, list_recipes, read_recipe
from embrew.recipe.stage import DataConfig, DevRows, StageConfig

__all__ = ["DataConfig", "DevRows", "Recipe", "StageConfig", "list_launches", "list_recipes", "read_recipe"]
