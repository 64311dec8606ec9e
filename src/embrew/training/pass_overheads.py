"""The overheads of forward passes by which a stage groups rows: measured once on a GPU, and kept when resumed."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from transformers import TrainingArguments

from embrew.distributed import decided
from embrew.files.reading import read_json
from embrew.files.writing import write_json
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.pass_overhead import Kind, is_measured, measure
from embrew.modeling.model.reach import at_rest

logger = logging.getLogger(__name__)
FILE = "pass_overheads.json"


def decide(encoder: Encoder, args: TrainingArguments, work: Path) -> dict[Kind, float]:
    """Return the overheads of an encoder's passes in tokens, in training and inference, and let it group rows by them.

    Empty where none is measured: on a CPU, with `full_determinism`. The first process measures,
    and writes the overheads to the stage's work folder, since they decide the last bits of results. All processes must
    call.
    """
    if args.full_determinism or not is_measured(encoder.backbone.inner):
        return {}
    path = work / FILE

    def choose() -> dict[Kind, float]:
        if path.is_file():
            kept = read_json(path, keys=("training", "inference"))
            return {"training": kept["training"], "inference": kept["inference"]}
        found = _measured(encoder, args)
        write_json(path, {str(kind): tokens for kind, tokens in found.items()})
        return found

    overheads = decided(choose)
    logger.info(
        "a forward pass costs as much as %(training)d tokens in training, %(inference)d in inference", overheads
    )
    encoder.backbone.overheads |= overheads
    return overheads


def _measured(encoder: Encoder, args: TrainingArguments) -> dict[Kind, float]:
    inner, dtype = encoder.backbone.inner, torch.float16 if args.fp16 else torch.bfloat16
    with torch.autocast(encoder.device.type, dtype, enabled=args.bf16 or args.fp16):
        training = measure(inner, encoder.attention, "training")
        with at_rest(encoder):
            return {"training": training, "inference": measure(inner, encoder.attention, "inference")}
