"""Compare an opened export with the vectors in its `parity.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from embrew.files.formats import EXPORT
from embrew.files.reading import content_of, read_json
from embrew.runtimes.converted import LEAST_COSINE, check_close

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
        said = f"{what}, from {folder} ({case['prompt_name'] or 'no prompt'})"
        check_close(torch.from_numpy(np.array(ours)).float(), wanted, allowed, least=least, what=said)


def _limit(model: Any, method: str) -> float:
    """Return the limit in tokens of a method's side; infinite where there is one for all."""
    limits = getattr(model, "max_length", None)
    return limits.get(method.removeprefix("encode_"), float("inf")) if isinstance(limits, dict) else float("inf")


def _shortest(case: dict[str, Any], limit: float) -> tuple[list[str], torch.Tensor]:
    fitting = [text for text in case["texts"] if text["text"] and len(text["ids"]) <= limit]
    texts = sorted(fitting, key=lambda text: len(text["ids"]))[:TEXTS]
    return [text["text"] for text in texts], torch.tensor([text["vector"] for text in texts])
