"""Build what a recipe describes: encoder, objective, rows, training arguments."""

from embrew.recipe.build.checking import check_recipe, check_stage
from embrew.recipe.build.encoders import (
    autocasts,
    check_same_encoder,
    compute_dtype,
    encoder,
    opening_dtype,
    prepare_encoder,
    starting_encoder,
)
from embrew.recipe.build.rows import datasets, order, rows, short_rows
from embrew.recipe.build.stages import (
    StageArguments,
    check_fills_batch,
    drops_last,
    load_recipe,
    objective,
    training_arguments,
)

__all__ = [
    "StageArguments",
    "autocasts",
    "check_fills_batch",
    "check_recipe",
    "check_same_encoder",
    "check_stage",
    "compute_dtype",
    "datasets",
    "drops_last",
    "encoder",
    "load_recipe",
    "objective",
    "opening_dtype",
    "order",
    "prepare_encoder",
    "rows",
    "short_rows",
    "starting_encoder",
    "training_arguments",
]
