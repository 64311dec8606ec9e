"""Build objects from a recipe; the only package that imports both recipes and the classes they describe."""

from embrew.assembly.checking import check_recipe, check_stage
from embrew.assembly.encoders import (
    arithmetic,
    autocasts,
    check_same_encoder,
    encoder,
    opening_dtype,
    prepare_encoder,
    starting_encoder,
)
from embrew.assembly.rows import datasets, order, rows, short_rows
from embrew.assembly.stages import (
    StageArguments,
    check_fills_batch,
    drops_last,
    load_recipe,
    objective,
    training_arguments,
)

__all__ = [
    "StageArguments",
    "arithmetic",
    "autocasts",
    "check_fills_batch",
    "check_recipe",
    "check_same_encoder",
    "check_stage",
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
