"""From a text's pooled vector to what a client asked for: dimensions, unit length, precision, JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import torch
from torch import nn

from embrew.corpus.precision import Ranges, quantize
from embrew.serving.errors import ApiError
from embrew.serving.schemas import Options


def check_options(
    options: Options, about: Mapping[str, Any], ranges: Ranges | None, ranges_of: Mapping[str, Any] | None
) -> None:
    """Raise unless the model offers these dimensions, this precision and this normalisation.

    Args:
        options: of a request.
        about: the model, as its reader describes it.
        ranges: of int8 codes; None: the server has none.
        ranges_of: what the vectors with these ranges were computed with; None: unknown.
    """
    width, layers = about["dimensions"], about["num_layers"]
    if options.dimensions is not None and options.dimensions > width:
        raise ApiError(400, f"dimensions={options.dimensions}; this model has {width} dimensions", param="dimensions")
    if options.normalize is False and about["always_normalizes"]:
        raise ApiError(400, "normalize=false: this model's vectors always have unit length", param="normalize")
    if options.precision != "int8":
        return
    if ranges is None:
        message = "precision=int8: the server has no ranges for codes; start it with --int8-ranges, or ask for "
        raise ApiError(400, f"{message}float32 or binary", param="precision")
    required = {"dimensions": (options.dimensions or width, len(ranges.minimum))}
    if ranges_of is not None:
        unit = about["normalize"] or about["always_normalizes"]
        required["normalize"] = (unit if options.normalize is None else options.normalize, unit)
        required["num_layers"] = (options.num_layers or layers, ranges_of["num_layers"] or layers)
    for name, (value, right) in required.items():
        if value != right:
            message = (
                f"precision=int8: the server's ranges are of vectors with {name}={json.dumps(right)}; ask for these"
            )
            raise ApiError(400, message, param=name)


def finish(raw: Sequence[np.ndarray], options: Options, about: Mapping[str, Any], ranges: Ranges | None) -> np.ndarray:
    """Return the vectors `(texts, dimensions)` of a request, as `Encoder.encode` finishes them.

    Args:
        raw: per text, float32 `(templates, dimensions)`.
        options: of the request.
        about: the model, as its reader describes it.
        ranges: of int8 codes.
    """
    parts = torch.from_numpy(np.stack(raw))[:, :, : options.dimensions]
    vectors = parts[:, 0] if parts.shape[1] == 1 else parts.mean(1)
    if about["normalize"] if options.normalize is None else options.normalize:
        vectors = nn.functional.normalize(vectors, dim=-1)
    if options.precision == "int8":
        return quantize(vectors.numpy(), "int8", ranges)[0]
    if options.precision == "float32":
        return np.ascontiguousarray(vectors.numpy())
    bits = quantize(vectors.numpy(), "binary")[0]
    return bits if options.precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)


def openai_json(vectors: np.ndarray, *, base64: bool, model: str, tokens: int) -> bytes:
    """Return OpenAI's answer as JSON; float32 has as many digits as it takes to read the same number again."""
    rows: Any = vectors
    if base64:
        rows = [b64encode(vector.astype("<f4", copy=False).tobytes()).decode("ascii") for vector in vectors]
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return as_json({"object": "list", "data": data, "model": model, "usage": usage})


def as_json(value: Any) -> bytes:
    """Return JSON of Python values and arrays."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
