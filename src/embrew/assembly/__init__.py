"""Build objects from a recipe; the only package that imports both recipes and the classes they describe."""

from embrew.assembly.checking import check_recipe, check_stage
from embrew.assembly.encoders import carries_on, check_same_encoder, encoder, make_trainable
from embrew.assembly.objectives import load_recipe, objective, objective_keys
from embrew.assembly.precision import Arithmetic, arithmetic, autocasts, opening_dtype
from embrew.assembly.rows import datasets, order, rows, short_rows
from embrew.assembly.stages import check_fills_batch, drops_last, training_arguments

__all__ = [
    "Arithmetic",
    "arithmetic",
    "autocasts",
    "carries_on",
    "check_fills_batch",
    "check_recipe",
    "check_same_encoder",
    "check_stage",
    "datasets",
    "drops_last",
    "encoder",
    "load_recipe",
    "make_trainable",
    "objective",
    "objective_keys",
    "opening_dtype",
    "order",
    "rows",
    "short_rows",
    "training_arguments",
]
