"""Arguments of `encode` checked and converted, and its vectors converted to what the caller asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from embrew.text.texts import SIDES

MTEB = ("task_metadata", "hf_split", "hf_subset", "prompt_type")
"""Keywords of mteb's calls of `encode`."""
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def check_offered(output_value: str | None, precision: str | None, pool: None, chunk_size: None) -> None:
    """Raise ValueError for arguments of Sentence-Transformers' `encode` that are not offered here."""
    if output_value != "sentence_embedding":
        raise ValueError(f"output_value={output_value!r}; only sentence_embedding (use hidden_states for tokens)")
    if pool is not None or chunk_size is not None:
        raise ValueError("pool and chunk_size are not offered; run one process per device")
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision={precision!r}; choose from {', '.join(PRECISIONS)}")


def read_mteb(
    batches: Any,
    prompt_name: str | None,
    max_length: int | None,
    limits: Mapping[str, int],
    keywords: Mapping[str, Any],
) -> tuple[list[str], str | None, int | None]:
    """Return texts of mteb's batches, and the prompt name and length limit of their side.

    Raises:
        TypeError: keywords that are not mteb's.
    """
    unknown = next((name for name in keywords if name not in MTEB), None)
    if unknown is not None:
        raise TypeError(f"encode() got an unexpected keyword argument {unknown!r}")
    side = getattr(keywords.get("prompt_type"), "value", keywords.get("prompt_type"))
    if side in SIDES:
        prompt_name = side if prompt_name is None else prompt_name
        max_length = limits[side] if max_length is None else max_length
    texts: list[str] = []
    for batch in batches:
        if "text" not in batch:
            raise ValueError(f"mteb gives {', '.join(batch)} and no text; an encoder reads texts only")
        texts += batch["text"]
    return texts, prompt_name, max_length


def options_of_side(
    side: str, limits: Mapping[str, int], prompt_name: str | None, prompt: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return keywords of `encode` for texts of one side: its prompt and its length limit, unless others are given."""
    limit = limits[side] if options.get("max_length") is None else options["max_length"]
    name = side if prompt_name is prompt is None else prompt_name
    return {**options, "prompt_name": name, "prompt": prompt, "max_length": limit}


def convert_vectors(
    vectors: Tensor, single: bool, precision: str | None, as_numpy: bool, as_tensor: bool
) -> np.ndarray | Tensor | list[Tensor]:
    """Return vectors in the form the caller asked for, quantised as Sentence-Transformers does it."""
    if precision not in (None, "float32"):
        from sentence_transformers.util import quantize_embeddings

        quantized = quantize_embeddings(vectors.numpy(), precision=precision)  # type: ignore[arg-type]
        vectors = torch.from_numpy(np.asarray(quantized))
    if single:
        vectors = vectors[0]
    if as_tensor:
        return vectors
    if as_numpy:
        return vectors.numpy()
    return vectors if single else list(vectors)


def to_unit_length(vectors: ArrayLike) -> Tensor:
    """Return unit vectors, float32 `(vectors, dimensions)`, of an array, a tensor, one vector, or a list of vectors."""
    if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor):
        vectors = torch.stack(list(vectors))
    array = torch.as_tensor(vectors).float()
    return nn.functional.normalize(array[None] if array.ndim == 1 else array, dim=-1)
