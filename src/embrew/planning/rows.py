"""The rows that a stage is planned with: those of its data, where it is here, else of the longest texts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets

from embrew import assembly
from embrew.data.mixing import MixedOrder
from embrew.data.overlap import set_aside
from embrew.data.reading import expand
from embrew.encoder import Encoder
from embrew.methods import Objective
from embrew.methods.gap import held_out_of
from embrew.recipe import DataConfig, Recipe, StageConfig

WORD, OTHER = "word ", "text "  # one token in most vocabularies, and as long
END = ". Word word"  # a second sentence, which llama2vec needs
MADE = 64  # rows that are made up: equally long, but different texts, or none could be a demonstration for another
DIGITS = MADE.bit_length() - 1


def stage_rows(
    recipe: Recipe, index: int, objective: Objective, encoder: Encoder, tokens: int | None = None, processes: int = 1
) -> tuple[Dataset, MixedOrder | None, bool]:
    """Return rows, their order, and whether they are those of the stage's data."""
    stage = recipe.stages[index]
    if not all(_is_here(config) for config in stage.datasets):
        config = next((one for one in stage.datasets if _has_negatives(one)), stage.datasets[0])
        rows = [_longest(config, objective, encoder, tokens, number) for number in range(MADE)]
        return objective.prepare(Dataset.from_list(rows), encoder), None, False
    logging.getLogger("embrew").debug("reading the data of %s", stage.name)
    parts = [
        objective.prepare(
            assembly.short_rows(assembly.rows(config, objective, max_rows=config.max_rows), config, encoder), encoder
        )
        for config in stage.datasets
    ]
    parts, _ = set_aside(parts, held_out_of(objective))
    order = assembly.order(stage, [len(part) for part in parts], objective, seed=recipe.seed, processes=processes)
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts), order, True


def declared_rows(stage: StageConfig) -> int | None:
    """Return the number of rows that a stage's data is limited to; None: not all of it is."""
    counts = [config.max_rows for config in stage.datasets]
    return None if None in counts else sum(count or 0 for count in counts)


def _is_here(config: DataConfig) -> bool:
    paths = config.paths
    try:
        return all(Path(expand(path)).exists() for path in paths)
    except (ValueError, FileNotFoundError):  # a variable that is not set
        return False


def _has_negatives(config: DataConfig) -> bool:
    """Whether pairs are taken to have negatives: not if `columns` names query and positive alone."""
    return not {"query", "positive"} <= set(config.columns) or "negatives" in config.columns


def _longest(
    config: DataConfig, objective: Objective, encoder: Encoder, tokens: int | None, number: int
) -> dict[str, Any]:
    """Return row `number`, whose texts are as long as the limits allow, or have `tokens`; pairs have one negative."""
    first = "".join(OTHER if number >> digit & 1 else WORD for digit in range(DIGITS))

    def text(limit: int) -> str:
        limits = [limit, config.max_tokens and config.max_tokens - 1, tokens]
        count = min(one for one in limits if one is not None)
        found = (first + WORD * count)[: len(WORD) * count]
        return found if config.max_chars is None else found[: config.max_chars]

    query, document = (text(encoder.max_length[side]) for side in ("query", "document"))
    if objective.rows_kind == "text":
        return {"text": document[: -len(END)].rstrip() + END}
    if objective.rows_kind == "scored":
        return {"sentence1": query, "sentence2": document, "score": 1.0}
    negatives = [document] if _has_negatives(config) else []
    return {"query": query, "positive": document, "negatives": negatives, "instruction": config.instruction}
