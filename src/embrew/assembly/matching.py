"""Check that a stage's objective fits the recipe's encoder and data, before any of them is opened."""

from __future__ import annotations

from embrew.assembly.rows import batches_of
from embrew.data.columns import ACCEPTED
from embrew.methods import Alignment, Objective
from embrew.recipe import Recipe


def check_matches(recipe: Recipe, index: int, built: Objective) -> None:
    """Raise if stage `index` cannot be trained with the recipe's encoder, or cannot read its data.

    Raises:
        ValueError: names what the objective needs, and the key that sets it.
    """
    stage, encoder = recipe.stages[index], recipe.encoder
    where = f"stages.{stage.name}"
    for number, config in enumerate(stage.datasets):
        place = f"{where}.data.{number}" if isinstance(stage.data, list) else f"{where}.data"
        known = ACCEPTED[built.rows_kind]
        for column in config.columns:
            if column not in known:
                raise ValueError(
                    f"{place}.columns.{column}: not a {built.rows_kind} column; choose from {', '.join(known)}"
                )
        if config.instructions and built.rows_kind != "pairs":
            raise ValueError(f"{place}.instructions are for pairs, not {built.rows_kind} rows; leave them out")
        if config.instructions and config.instruct == "both" and batches_of(stage, built) == "mixed":
            raise ValueError(
                f"{place}.instructions with instruct: both in mixed batches: each row has its own, which would tell a "
                "query's positive from others; set mix: {batches: one}, or instruct: query"
            )
        if config.instructions and isinstance(built, Alignment) and built.has_references:
            raise ValueError(
                f"{place}.instructions with objective.variant={built.variant!r}: its reference scores are computed "
                "once, with one instruction; set instruction, or objective.variant: kl or js"
            )
        if config.sentences and built.rows_kind not in ("text", "pairs"):
            raise ValueError(
                f"{place}.sentences=True is for text rows and pairs, not {built.rows_kind} rows; leave it out"
            )
    attention = next(
        (one.attention for one in reversed(recipe.stages[: index + 1]) if one.attention), encoder.attention
    )
    if attention == "memory_causal" and not encoder.memory_tokens:
        raise ValueError(f"{where}.attention='memory_causal' with encoder.memory_tokens=0; it needs memory tokens")
    settings = encoder.settings.replace(attention=attention)
    objective: Objective | None = built
    while objective is not None:
        try:
            objective.check_encoder(settings, encoder.memory_tokens)
        except ValueError as error:
            raise ValueError(f"{where}.objective: {type(objective).__name__}: {error}") from None
        objective = getattr(objective, "base", None)
