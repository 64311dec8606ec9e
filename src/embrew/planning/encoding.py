"""What encoding a corpus takes: hours, bytes, shards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from embrew.files.reading import read_json
from embrew.opening import is_recipe
from embrew.planning.devices import Gpu, device
from embrew.planning.shapes import config_of, empty_model, shape_of_model
from embrew.planning.stage import UTILIZATION
from embrew.recipe import Recipe

ID_BYTES = 16  # bytes of an id in a shard, its offset included
BITS_PER_VALUE = {"float32": 32, "int8": 8, "binary": 1}
SHARD_ROWS = 32_768  # as of `embrew encode`


def plan_encoding(
    model: str,
    *,
    texts: float,
    tokens: int = 180,
    gpu: Gpu = "h100",
    devices: int = 1,
    utilization: float = UTILIZATION,
    truncate_dim: int | None = None,
) -> dict[str, Any]:
    """Return the plan of encoding a corpus; no weights are read.

    Args:
        model: folder of an encoder, recipe, or id of a language model.
        texts: number of texts of the corpus.
        tokens: mean number of tokens of a text, template included.
        gpu: name of a device.
        devices: number of devices, which share the shards.
        utilization: share of a device's peak FLOP/s in bfloat16 (a CPU: float32) that encoding reaches.
        truncate_dim: dimensions of truncated vectors; a quarter by default.

    Returns:
        Hours on all devices; `bytes` of all vectors with their ids, by dimensions and precision; `lost_worker_seconds`,
        the time of a shard on one device, which a lost worker costs at most; and what they rest on.
    """
    if not 1 <= texts < math.inf:
        raise ValueError(f"texts={texts}; give a number from 1 on, for example 1e9")
    recipe = Recipe.from_values({"encoder": {"model": _language_model(model), "pooling": {"mode": "last"}}})
    (config, own_config), planned_device = config_of(recipe), device(gpu)
    shape = shape_of_model(empty_model(config, torch.float32), config)
    if truncate_dim is not None and not 1 <= truncate_dim <= shape.hidden:
        raise ValueError(
            f"truncate_dim={truncate_dim}; the vectors of {model} have {shape.hidden} dimensions, give at most those"
        )
    count, flop = int(texts), shape.operations(tokens, tokens)
    speed = planned_device.speed("float32" if planned_device.kind == "cpu" else "bfloat16")
    seconds_per_text = flop / (speed * utilization)
    dimensions = [shape.hidden, truncate_dim or shape.hidden // 4]
    return {
        "model": model,
        "device": planned_device.name,
        "devices": devices,
        "utilization": utilization,
        "texts": count,
        "tokens": tokens,
        "parameters": shape.parameters,
        "dimensions": dimensions,
        "bytes": {
            size: {name: count * (ID_BYTES + math.ceil(size * bits / 8)) for name, bits in BITS_PER_VALUE.items()}
            for size in dimensions
        },
        "shard_rows": SHARD_ROWS,
        "shards": math.ceil(count / SHARD_ROWS),
        "flop_per_text": flop,
        "hours": seconds_per_text * count / devices / 3600,
        "lost_worker_seconds": seconds_per_text * min(SHARD_ROWS, count),
        "own_config": own_config,
    }


def _language_model(model: str) -> str:
    """Return the language model under an encoder's folder or a recipe; another name unchanged."""
    if is_recipe(model):
        return Recipe.load(model).encoder.model
    settings = Path(model, "embrew.json")
    if settings.is_file() and not Path(model, "config.json").is_file():
        return str(read_json(settings, keys=("base",))["base"]["name"])
    return model
