"""The rows of a stage's data sets, and their order."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np

from embrew.data import datasets as data
from embrew.data import describe
from embrew.data.datasets import row_text
from embrew.data.fingerprints import RESERVED
from embrew.data.mixing import MixedOrder, shares
from embrew.data.rejects import MAX_RATE, Rejects, reject_file
from embrew.distributed import world_size
from embrew.encoder import Encoder
from embrew.methods import EmbeddingObjective, Objective
from embrew.methods.base import token_counts
from embrew.recipe.stage import DataConfig, StageConfig

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def datasets(
    stage: StageConfig,
    objective: Objective,
    encoder: Encoder,
    *,
    keep: Path | None = None,
    reserved: np.ndarray | None = None,
    rejected: Path | None = None,
) -> list[Dataset]:
    """Return the rows of each of the stage's data sets, prepared for the objective.

    Args:
        stage: settings of the stage.
        objective: objective of the stage.
        encoder: encoder to train.
        keep: folder for cached values, such as a reference model's.
        reserved: fingerprints of texts that are not trained on (see `data.fingerprints`).
        rejected: file that lists the rows that `on_bad_rows: skip` skips.

    Raises:
        ValueError: no row of a data set is left.
    """
    with reject_file(rejected) as file:
        try:
            parts = [
                rows(config, objective, max_rows=config.max_rows, reserved=reserved, file=file, listed=rejected)
                for config in stage.datasets
            ]
        except FileNotFoundError as error:
            override = f"'stages.{stage.name}.data={{path: FILE}}'"
            raise FileNotFoundError(f"{error}; for data of yours, give {override}") from None
    for number, config in enumerate(stage.datasets):
        part = parts[number]
        if reserved is not None:  # rows were marked before they were split into sentences
            trained = part.select(np.flatnonzero(~np.array(part[RESERVED], dtype=bool))).remove_columns(RESERVED)
            left_out = len(part) - len(trained)
            if not len(trained):
                raise ValueError(
                    f"stage {stage.name}: all {len(part)} rows of a data set hold dev rows; lower rows of "
                    "evaluation.dev"
                )
            logger.info("%s  %d of %d rows hold dev rows and are not trained on", stage.name, left_out, len(part))
            part = trained
        description = describe(part)
        logger.info("%s  %s", stage.name, description["columns"])
        for example in description["examples"]:
            logger.info("    %s", row_text(example))
        short_part = short_rows(part, config, encoder)
        cache = None if keep is None else keep / str(number)
        parts[number] = objective.precompute(objective.prepare(short_part, encoder), encoder, cache)
    return parts


def order(
    stage: StageConfig, sizes: Sequence[int], objective: Objective, *, seed: int, processes: int | None = None
) -> MixedOrder | None:
    """Return the order in which several data sets are read; None: rows are shuffled.

    If embeddings are compared within a batch, a batch has rows of one data set unless the stage sets `mix.batches`:
    texts of other data sets would be too easy negatives. A data set with several instructions has one in each batch, or
    where batches are mixed in each row; a single such data set has an order too.

    Args:
        stage: settings of the stage.
        sizes: number of rows of each data set.
        objective: objective of the stage.
        seed: random seed of the order.
        processes: number of processes of a planned stage; None: of those that train now.
    """
    batches = batches_of(stage, objective)
    weights = [config.weight for config in stage.datasets if config.weight is not None]
    ratios = [1.0 if config.ratio is None else config.ratio for config in stage.datasets]
    temperature = stage.mix.temperature if stage.mix else 1.0
    instructions = [config.instructions or [] for config in stage.datasets]
    is_plain = len(sizes) < 2 or (batches == "mixed" and not weights and temperature == 1.0 and set(ratios) == {1.0})
    if is_plain and not any(instructions):
        return None
    per_device = int(stage.training.get("per_device_train_batch_size", 8))
    batch = stage.batch.size if stage.batch else per_device * (processes or world_size())
    scaled_sizes = [ratio * size for ratio, size in zip(ratios, sizes, strict=True)]
    probabilities = shares(scaled_sizes, weights=weights or None, temperature=temperature)
    logger.info(
        "%s  sampling proportions of the data sets: %s",
        stage.name,
        ", ".join(f"{share:.1%}" for share in probabilities),
    )
    block = batch if batches == "one" else 1
    return MixedOrder(sizes, probabilities, block=block, seed=seed, instructions=instructions)


def batches_of(stage: StageConfig, objective: Objective) -> Literal["one", "mixed"]:
    """Return whether a batch has rows of one data set, or of all."""
    if stage.mix is not None:
        return stage.mix.batches
    return "one" if isinstance(objective, EmbeddingObjective) else "mixed"


def rows(
    config: DataConfig,
    objective: Objective,
    *,
    max_rows: int | None,
    reserved: np.ndarray | None = None,
    file: IO[str] | None = None,
    listed: Path | None = None,
) -> Dataset:
    """The canonical rows of one data set, before any filter that needs a tokenizer.

    Args:
        config: settings of the data set.
        objective: objective that is trained.
        max_rows: maximum number of rows.
        reserved: as for `load`.
        file: receives a list of the rows that `on_bad_rows: skip` skips.
        listed: path of that file.
    """
    rejects = Rejects()
    if config.on_bad_rows == "skip":
        rate = MAX_RATE if config.max_reject_rate is None else config.max_reject_rate
        rejects = Rejects(file or io.StringIO(), max_rate=rate, purpose="trained on", listed=str(listed or ""))
    return data.load(
        config.path,
        kind=objective.rows_kind,
        name=config.name,
        split=config.split,
        revision=config.revision,
        columns=config.columns,
        instruction=config.instructions[0] if config.instructions else config.instruction,
        instruct=config.instruct,
        where=config.where,
        sentences=config.sentences,
        min_chars=config.min_chars,
        max_chars=config.max_chars,
        max_rows=max_rows,
        shuffle_seed=config.shuffle_seed,
        reserved=None if reserved is None else set(reserved.tolist()),
        rejects=rejects,
    )


def short_rows(part: Dataset, config: DataConfig, encoder: Encoder) -> Dataset:
    """Return the rows whose texts have at most `max_tokens` of a data set's settings; all, where it has none.

    Raises:
        ValueError: no row is left.
    """
    if (max_tokens := config.max_tokens) is None:
        return part
    keep = set(range(len(part)))
    for column in ("text", "query", "positive"):
        if column in part.column_names:
            keep &= {i for i, count in enumerate(token_counts(part, column, encoder)) if count <= max_tokens}
    if not keep:
        raise ValueError(f"none of {len(part)} rows has at most max_tokens={max_tokens}; raise the limit")
    return part.select(sorted(keep))
