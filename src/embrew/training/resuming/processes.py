"""Resume a stage in another number of processes: every optimiser step reads the rows of an uninterrupted run."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from transformers import TrainingArguments

from embrew.encoder import Encoder
from embrew.methods import EmbeddingObjective, Joint, Objective
from embrew.methods.info_nce import has_dropout
from embrew.recipe import StageConfig

logger = logging.getLogger(__name__)


def keep_rows_per_step(
    stage: StageConfig, objective: Objective, args: TrainingArguments, encoder: Encoder, *, begun: int
) -> None:
    """Set the rows per process, and gradient accumulation, so that a step reads as many rows as in `begun` processes.

    The order of rows does not depend on the number of processes, and each step reads the next ones. A loss that
    compares the rows of a batch keeps its batch over all processes; other losses are means over the rows, or tokens, of
    a step.

    Args:
        stage: its settings.
        objective: built from them.
        args: built from them, for the processes of now; changed.
        encoder: what is trained.
        begun: number of processes that the stage was begun in.

    Raises:
        ValueError: in this number of processes, the loss would be another one.
    """
    now = args.world_size
    if begun == now:
        return
    where = f"stage {stage.name}: begun in {begun} processes and resumed in {now}"
    if args.deepspeed_plugin is not None:
        raise ValueError(f"{where}: DeepSpeed's checkpoints hold a shard per process; resume in {begun} processes")
    if not all(getattr(one, "gather", True) for one in _with_bases(objective)):
        raise ValueError(
            f"{where}: gather: false compares the texts of one process, and their number would be another one; resume "
            f"in {begun} processes"
        )
    if stage.batch is None:  # else batch.size counts the rows of all processes
        _share_out(objective, args, begun, where)
    logger.info(
        "%s  begun in %d processes, resumed in %d: %d rows per process and batch, %d batches per step, %d rows in all",
        stage.name,
        begun,
        now,
        args.per_device_train_batch_size,
        args.gradient_accumulation_steps,
        args.per_device_train_batch_size * args.gradient_accumulation_steps * now,
    )
    if has_dropout(encoder):
        logger.warning(
            "%s  dropout draws other random numbers in %d processes than in %d; the order of rows is the same",
            stage.name,
            now,
            begun,
        )


def _share_out(objective: Objective, args: TrainingArguments, begun: int, where: str) -> None:
    """Set rows and batches of each process; no more rows in a batch than before, unless they are compared."""
    rows, batches, now = args.per_device_train_batch_size, args.gradient_accumulation_steps, args.world_size
    compares = isinstance(objective, EmbeddingObjective | Joint)
    together = rows * begun * (1 if compares else batches)
    if together % now:
        what = "batch of all processes" if compares else "step"
        raise ValueError(f"{where}: the {together} rows of a {what} are not divisible by {now}")
    share = together // now
    args.per_device_train_batch_size = share
    if not compares:
        args.per_device_train_batch_size = next(size for size in range(min(rows, share), 0, -1) if share % size == 0)
        args.gradient_accumulation_steps = share // args.per_device_train_batch_size


def _with_bases(objective: Objective) -> Iterator[Objective]:
    yield objective
    base = getattr(objective, "base", None)
    if isinstance(base, Objective):
        yield from _with_bases(base)
