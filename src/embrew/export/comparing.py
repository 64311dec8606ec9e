"""Compare what a runtime made of an export's reference texts with the encoder's token ids and vectors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embrew.storage.parts import first_difference, open_tokenizer

logger = logging.getLogger(__name__)


def require_same_ids(folder: Path, parity: Mapping[str, Any], ids: Sequence[Sequence[list[int]]]) -> None:
    """Raise if a tokenizer gives other ids.

    Args:
        folder: the export, to name the first token that differs.
        parity: content of its `parity.json`.
        ids: of every text of every case.

    Raises:
        RuntimeError: they differ; names the text and the first token.
    """
    for case, found in zip(parity["cases"], ids, strict=True):
        for text, got in zip(case["texts"], found, strict=True):
            if text["ids"] != got:
                where = first_difference(text["ids"], got, open_tokenizer(folder))
                raise RuntimeError(
                    f"the exported tokenizer gives other ids for {text['text'][:40]!r} ({prompt_of(case)}): {where}"
                )


def require_same_vectors(
    what: str, parity: Mapping[str, Any], vectors: Sequence[np.ndarray], *, least_cosine: float | None = None
) -> None:
    """Raise if vectors are not those of the reference, up to the tolerance in `parity.json`, or by cosine.

    Args:
        what: gives the vectors, for the message.
        parity: content of `parity.json`.
        vectors: of every case, `(texts, dimensions)`.
        least_cosine: smallest cosine that is allowed, where weights are rounded; None: the tolerance counts.

    Raises:
        RuntimeError: they are not, or are not numbers; names the prompt, and by how much.
    """
    for case, found in zip(parity["cases"], vectors, strict=True):
        wanted = np.array([text["vector"] for text in case["texts"]], dtype=np.float32)
        difference = float(np.abs(wanted - found).max()) if wanted.shape == found.shape else float("inf")
        cosine = float(cosines(found, wanted).min()) if wanted.shape == found.shape else float("-inf")
        called = f"{prompt_of(case)}, {case['method']}"
        logger.info("%s: %s, largest difference %.1e, smallest cosine %.6f", what, called, difference, cosine)
        if least_cosine is None and not difference <= parity["tolerance"]:
            raise RuntimeError(
                f"{what} gives other vectors ({called}): largest difference {difference:.2e}, allowed "
                f"{parity['tolerance']:.0e}"
            )
        if least_cosine is not None and not cosine >= least_cosine:
            raise RuntimeError(
                f"{what} gives other vectors ({called}): smallest cosine {cosine:.4f}, allowed {least_cosine}; export "
                "with --weights fp32"
            )


def prompt_of(case: Mapping[str, Any]) -> str:
    """Return the prompt of a case of `parity.json`, for a message."""
    return "no prompt" if case["prompt_name"] is None else f"prompt {case['prompt_name']}"


def cosines(vectors: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of rows; 1 where both are zero, which is the vector of an empty text."""
    norms = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(wanted, axis=-1)
    both_zero = ~vectors.any(axis=-1) & ~wanted.any(axis=-1)
    return np.where(both_zero, 1.0, (vectors * wanted).sum(-1) / np.maximum(norms, 1e-12))
