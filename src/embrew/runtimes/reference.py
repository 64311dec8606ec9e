"""Compare an opened export with the vectors in its `parity.json`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embrew.files.formats import EXPORT
from embrew.files.reading import content_of, read_json

logger = logging.getLogger(__name__)
LEAST_COSINE = 0.99
"""Of a vector computed in bfloat16 to the same in float32."""
TEXTS = 4  # per prompt: the shortest ones


def compare_with_reference(model: Any, folder: Path, *, exact: bool, what: str) -> None:
    """Encode the shortest reference texts of each prompt of an export, and compare their vectors with those written.

    An export has one limit. Texts beyond that of their side, where the model has two, are left out.

    Args:
        model: the opened export, with the encode methods of Sentence-Transformers.
        folder: the export.
        exact: weights and arithmetic are float32, so that the tolerance of the export counts; else a cosine.
        what: gives the vectors, for the message.

    Raises:
        ValueError: the vectors are others.
    """
    path = folder / EXPORT.file
    parity = read_json(path, kind=EXPORT)
    with content_of(path):
        allowed = float(parity["tolerance"]) if exact else None
        least = float(parity.get("least_cosine", LEAST_COSINE))
        cases = [(case, *_shortest(case, _limit(model, case["method"]))) for case in parity["cases"]]
    for case, texts, wanted in cases:
        if not texts:
            continue
        named = {} if case["method"] != "encode" or case.get("default") else {"prompt_name": case["prompt_name"]}
        ours = getattr(model, case["method"])(texts, show_progress_bar=False, **named)
        where = f"{what}, from {folder} ({case['prompt_name'] or 'no prompt'})"
        check_close(torch.from_numpy(np.array(ours)).float(), wanted, allowed, least=least, what=where)


def _limit(model: Any, method: str) -> float:
    """Return the limit in tokens of a method's side; infinite where there is one for all."""
    limits = getattr(model, "max_length", None)
    return limits.get(method.removeprefix("encode_"), float("inf")) if isinstance(limits, dict) else float("inf")


def _shortest(case: dict[str, Any], limit: float) -> tuple[list[str], torch.Tensor]:
    fitting = [text for text in case["texts"] if text["text"] and len(text["ids"]) <= limit]
    texts = sorted(fitting, key=lambda text: len(text["ids"]))[:TEXTS]
    return [text["text"] for text in texts], torch.tensor([text["vector"] for text in texts])


def check_close(
    ours: torch.Tensor, theirs: torch.Tensor, allowed: float | None, *, what: str, least: float = LEAST_COSINE
) -> None:
    """Raise unless vectors are those of the reference: up to a difference, or (None) with a least cosine.

    Raises:
        ValueError: they are not; says by how much.
    """
    ours, theirs = (torch.nn.functional.normalize(vectors, dim=-1) for vectors in (ours, theirs))
    difference = float((ours - theirs).abs().max())
    both_empty = (ours == 0).all(-1) & (theirs == 0).all(-1)  # an empty text without anything to pool
    cosine = float(torch.where(both_empty, 1.0, (ours * theirs).sum(-1)).min())
    logger.info("%s: largest difference %.1e, smallest cosine %.6f", what, difference, cosine)
    if allowed is None and not cosine >= least:
        raise ValueError(
            f"{what} gives other vectors: smallest cosine {cosine:.4f}, allowed {least}; use --dtype float32, "
            "or --backend torch"
        )
    if allowed is not None and not difference <= allowed:
        raise ValueError(
            f"{what} gives other vectors: largest difference {difference:.2e}, allowed {allowed:.0e}; use "
            "--backend torch"
        )
