"""What encoding a corpus takes: hours, bytes, shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from embrew.files.reading import read_json
from embrew.planning.architectures import config_of
from embrew.planning.devices import Device, device
from embrew.planning.shapes import Shape, empty_model
from embrew.planning.stage import UTILIZATION
from embrew.recipe import Recipe, list_recipes

ID = 16  # bytes of an id in a shard, its offset included
BITS = {"float32": 32, "int8": 8, "binary": 1}


@dataclass(frozen=True, kw_only=True)
class EncodingPlan:
    """Encoding a corpus on a number of devices.

    Attributes:
        model: what encodes.
        device: each of the devices.
        devices: their number.
        utilization: share of their arithmetic that is reached.
        texts: of the corpus.
        tokens: of a text, on average.
        parameters: of the model.
        flop: floating-point operations of a text.
        seconds: of all texts, on all devices.
        dimensions: of a vector; whole, then truncated.
        bytes: of all vectors with their ids, by dimensions and precision.
        shard_rows: texts of a shard.
        shards: number of files.
        own_config: whether the shape is from the model's own configuration.
    """

    model: str
    device: Device
    devices: int
    utilization: float
    texts: int
    tokens: int
    parameters: int
    flop: float
    seconds: float
    dimensions: list[int]
    bytes: dict[int, dict[str, int]]
    shard_rows: int
    shards: int
    own_config: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        left_out = ("device", "flop", "seconds", "own_config")
        fields = {name: value for name, value in vars(self).items() if name not in left_out}
        times = {"flop_per_text": self.flop, "hours": self.seconds / 3600, "lost_worker_seconds": self.lost_seconds}
        return {**fields, "device": self.device.name, **times}

    @property
    def lost_seconds(self) -> float:
        """Seconds of one device that are computed again where a worker is lost: at most one shard."""
        return self.seconds * self.devices * min(self.shard_rows, self.texts) / max(self.texts, 1)


def plan_encoding(
    model: str,
    *,
    texts: float,
    tokens: int,
    gpu: str = "h100",
    devices: int = 1,
    utilization: float = UTILIZATION,
    truncate_dim: int | None = None,
    shard_rows: int = 32_768,
) -> EncodingPlan:
    """Return the plan of encoding a corpus; no weights are read.

    Time grows with the number of texts on a line: texts are encoded shard by shard, each on its own.

    Args:
        model: folder of an encoder, recipe, or id of a language model.
        texts: of the corpus.
        tokens: of a text, on average, template included.
        gpu: name of a device.
        devices: number of devices, which share the shards.
        utilization: share of a device's arithmetic in bfloat16 (a CPU: float32) that encoding reaches.
        truncate_dim: dimensions of truncated vectors; a quarter by default.
        shard_rows: texts of a shard.

    Raises:
        ValueError: `texts` is not a number from 1 on, or vectors have fewer than `truncate_dim` dimensions.
    """
    if not 1 <= texts < math.inf:
        raise ValueError(f"texts={texts}; give a number from 1 on, for example 1e9")
    recipe = Recipe.from_values({"encoder": {"model": _language_model(model), "pooling": {"mode": "last"}}})
    config, own = config_of(recipe)
    place = device(gpu)
    shape = Shape.of_model(empty_model(config, torch.float32), config)
    flop, width = shape.operations(tokens, tokens), shape.hidden
    if truncate_dim is not None and not 1 <= truncate_dim <= width:
        raise ValueError(
            f"truncate_dim={truncate_dim}; the vectors of {model} have {width} dimensions, give at most those"
        )
    count = int(texts)
    speed = place.speed("float32" if place.kind == "cpu" else "bfloat16") * utilization * devices
    dimensions = [width, truncate_dim or width // 4]
    return EncodingPlan(
        model=model,
        device=place,
        devices=devices,
        utilization=utilization,
        texts=count,
        tokens=tokens,
        parameters=shape.parameters,
        flop=flop,
        seconds=flop * count / speed,
        dimensions=dimensions,
        bytes={
            size: {name: count * (ID + math.ceil(size * bits / 8)) for name, bits in BITS.items()}
            for size in dimensions
        },
        shard_rows=shard_rows,
        shards=math.ceil(count / shard_rows),
        own_config=own,
    )


def _language_model(model: str) -> str:
    """Return the language model under an encoder's folder or a recipe; another name unchanged."""
    if model in list_recipes() or model.endswith((".yaml", ".yml")):
        return Recipe.load(model).encoder.model
    folder = Path(model)
    settings = folder / "embrew.json"
    if settings.is_file() and not (folder / "config.json").is_file():
        return str(read_json(settings, keys=("base",))["base"]["name"])
    return model
