"""Weights of an OpenVINO model in int8 by NNCF, compared with the encoder's vectors."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from embrew.export.comparing import cosines
from embrew.export.parts import Parts
from embrew.runtimes.encoder import RuntimeEncoder
from embrew.runtimes.folder import read_encoder
from embrew.runtimes.library import nncf

logger = logging.getLogger(__name__)
GROUP = 128
"""Values of activations that share a scale where these are quantised while they are computed: see the benchmarks."""
ALLOWED = 0.01  # by how much a cosine may be lower on another machine than where the export was made


def quantised(model: Any, parts: Parts) -> Any:
    """Return an `ov.Model` with weights in int8.

    Without texts, weights are compressed with a scale and a zero point per channel; OpenVINO quantises activations
    while it computes, `GROUP` values at a time, and the model says so to whoever opens it. With texts, activations have
    fixed ranges, which the texts give.

    Args:
        model: in float32, inputs `input_ids` and `attention_mask`.
        parts: the encoder, with the texts.
    """
    library = nncf()
    with _quiet():
        if parts.int8.texts:
            rows = [_inputs(parts, text) for text in parts.int8.texts]
            return library.quantize(
                model,
                library.Dataset(rows),
                model_type=library.ModelType.TRANSFORMER,  # attention's products of activations stay float
                preset=library.QuantizationPreset.MIXED,
                subset_size=len(rows),
            )
        model = library.compress_weights(model, mode=library.CompressWeightsMode.INT8_ASYM)
        model.set_rt_info(str(GROUP), ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
        return model


def _inputs(parts: Parts, text: str) -> dict[str, np.ndarray]:
    """Return the graph's inputs of one text, as a document."""
    words = parts.prompts.get("document", "") + text
    ids = parts.tokenizer(words, truncation=True, max_length=parts.encoder.max_seq_length)["input_ids"]
    row = np.array([ids], dtype=np.int64)
    return {"input_ids": row, "attention_mask": np.ones_like(row)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide NNCF's notes and progress bars."""
    log = logging.getLogger("nncf")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        log.setLevel(level)


def measure(parts: Parts, out: Path) -> None:
    """Compare the written folder with the encoder, and write the result into `parts.parity`.

    `int8` holds the mean and the smallest cosine and the scores; `least_cosine`, what a reference text may have at
    least when the folder is verified or opened.

    Raises:
        RuntimeError: the mean cosine is below `parts.int8.min_cosine`.
    """
    made, settings = read_encoder(out), parts.int8
    quiet: dict[str, Any] = {"show_progress_bar": False, "batch_size": max(1, min(8, 16_384 // made.max_seq_length))}
    own = [_cosines(made, case, quiet) for case in parts.parity["cases"]]
    found = own[0]
    if settings.texts:
        options = {**quiet, "max_length": parts.encoder.max_seq_length}
        ours, wanted = (
            np.asarray(model.encode_document(list(settings.texts), **options)) for model in (made, parts.encoder)
        )
        found = np.concatenate([found, cosines(ours, wanted)])
    mean, least = float(found.mean()), float(found.min())
    logger.info("int8: cosine to the encoder's vectors %.4f on average, %.4f at least", mean, least)
    if not mean >= settings.min_cosine:
        raise RuntimeError(
            f"weights in int8 change the vectors too much: the mean cosine over {len(found)} texts is {mean:.4f} "
            f"(smallest {least:.4f}), allowed {settings.min_cosine}; export with --weights bf16, "
            + ("without --calibrate, " if settings.texts else "")
            + "or with a lower --min-cosine"
        )
    scores = (
        {}
        if settings.score is None
        else {"encoder": dict(settings.score(parts.encoder)), "int8": dict(settings.score(made))}
    )
    names = scores.get("encoder", {})
    for name in names:
        logger.info("%s: encoder %.4f, int8 %.4f", name, scores["encoder"][name], scores["int8"][name])
    calibrated = f"too, with ranges of {len(settings.texts)} texts"
    parts.parity["int8"] = {
        "activations": calibrated if settings.texts else f"while computing, {GROUP} values at a time",
        "texts": len(found),
        "mean_cosine": round(mean, 6),
        "min_cosine": round(least, 6),
        "allowed_mean_cosine": settings.min_cosine,
        "dev": {name: {kind: values[name] for kind, values in scores.items()} for name in names},
    }
    parts.parity["least_cosine"] = round(float(np.concatenate(own).min()) - ALLOWED, 4)


def _cosines(made: RuntimeEncoder, case: Mapping[str, Any], options: dict[str, Any]) -> np.ndarray:
    """Return the cosine of each reference text of a case to the encoder's vector."""
    named = {"prompt_name": case["prompt_name"]} if case["method"] == "encode" and not case.get("default") else {}
    texts = [text["text"] for text in case["texts"]]
    vectors = getattr(made, case["method"])(texts, max_length=case["max_length"], **named, **options)
    return cosines(np.asarray(vectors), np.array([text["vector"] for text in case["texts"]], dtype=np.float32))
