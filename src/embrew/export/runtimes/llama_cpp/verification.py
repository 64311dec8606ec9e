"""Verify a GGUF file: its tensors read back, and its token ids and vectors in llama.cpp."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embrew.export.comparing import prompt_of
from embrew.export.runtimes.llama_cpp.pre_tokenizer import prepared
from embrew.export.runtimes.llama_cpp.running import PYTHON, interpreter, run_gguf
from embrew.storage.parts import first_difference, open_tokenizer

logger = logging.getLogger(__name__)
LOWEST = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.999, "int8": 0.99}
"""Lowest cosine allowed between llama.cpp's vector and the encoder's, by type of the weights."""
EXACT = 1e-5  # tolerance of references that were computed in float32


def verify_gguf(out: Path, parity: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Compare token ids and vectors of the reference texts; return what was compared, for `parity.json`.

    A text beyond the limit has no vector in llama.cpp: its clients refuse it, or cut off its last tokens.
    """
    about, weights = parity["llama.cpp"], parity["runtimes"]["llama.cpp"]
    if interpreter() is None:
        logger.warning(
            "%s was not run: llama-cpp-python is not installed here (nor named by %s); token ids and vectors of "
            "llama.cpp are not compared",
            about["file"],
            PYTHON,
        )
        return {"run": None}
    limit, lowest = parity["max_length"], LOWEST[weights]
    if parity["tolerance"] > EXACT:
        lowest = min(lowest, 0.999)
    pairs = [(case, text) for case in parity["cases"] for text in case["texts"]]
    texts = [prepared((case["prompt"] or "") + text["text"], about["text_preparation"]) for case, text in pairs]
    found, cosines, beyond = run_gguf(out / about["file"], texts, limit=limit), [], 0
    for (case, text), ids, vector in zip(pairs, found.ids, found.vectors, strict=True):
        what = f"for {text['text'][:40]!r} ({prompt_of(case)})"
        if vector is None and len(text["ids"]) == limit:
            beyond += 1
            continue
        if ids != text["ids"]:
            where = first_difference(text["ids"], ids, open_tokenizer(out))
            raise RuntimeError(f"llama.cpp gives other token ids {what}: {where}")
        assert vector is not None
        cosines.append(cosine(np.array(text["vector"], dtype=np.float32), vector))
        if not cosines[-1] >= lowest:
            raise RuntimeError(f"llama.cpp gives another vector {what}: cosine {cosines[-1]:.6f}, allowed {lowest}")
    if not cosines:
        raise RuntimeError(f"no reference text has less than {limit} tokens, so none is compared; export with more")
    run = f"llama-cpp-python {found.version}"
    logger.info("%s: the same token ids for %d texts, smallest cosine %.6f", run, len(cosines), min(cosines))
    return {
        "run": run,
        "texts": len(cosines),
        "beyond_limit": beyond,
        "lowest_cosine": round(min(cosines), 7),
        "mean_cosine": round(float(np.mean(cosines)), 7),
    }


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine of two vectors; nan: one of them is zero or not finite."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
