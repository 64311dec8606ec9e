"""OpenVINO: the whole encoder as one graph in float32, bfloat16 or int8 (by NNCF), and the tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embrew.encoder import Encoder
from embrew.export.fresh_process import cosines
from embrew.export.parts import Parts
from embrew.export.runtime import Runtime, quiet
from embrew.runtimes.converted import shape_of
from embrew.runtimes.encoder import Origin
from embrew.runtimes.folder import GRAPH, read_encoder, write_encoder
from embrew.runtimes.graph import graph_refusal
from embrew.runtimes.openvino import convert, nncf, openvino, round_weights
from embrew.runtimes.reference import LEAST_COSINE
from embrew.storage.base_model import computes
from embrew.text_encoder import tokenizer_sha256
from embrew.threads import cores

logger = logging.getLogger(__name__)
GROUP = 128
"""Values of activations that share a scale where these are quantised while they are computed: see the benchmarks."""
ALLOWED = 0.01  # by how much a cosine may be lower on another machine than where the export was made
OPENING = """
sys.modules["openvino_telemetry"] = None  # it would send a usage event
import numpy as np, openvino
from transformers import AutoTokenizer
version = openvino.__version__
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
precision = {"INFERENCE_PRECISION_HINT": options["precision"]}
graph = openvino.Core().compile_model(folder + "/openvino/openvino_model.xml", "CPU", precision)
def encode(case, texts):
    words = [(case["prompt"] or "") + text for text in texts]
    batch = tokenizer(words, padding=True, truncation=True, max_length=parity["max_length"], return_tensors="np")
    ids, mask = (batch[name].astype(np.int64) for name in ("input_ids", "attention_mask"))
    vectors = np.array(graph({"input_ids": ids, "attention_mask": mask})["sentence_embedding"])
    return [(row[real == 1].tolist(), vector) for row, real, vector in zip(ids, mask, vectors)]
"""
OPEN = """`openvino/openvino_model.xml` is for OpenVINO:

```python
import openvino
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
graph = openvino.Core().compile_model("PATH/openvino/openvino_model.xml", "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})
texts = [{prompt!r} + "…"]
batch = tokenizer(texts, padding=True, truncation=True, max_length={limit}, return_tensors="np")
vectors = graph({{"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}})["sentence_embedding"]
```

Without `INFERENCE_PRECISION_HINT`, OpenVINO computes in bfloat16 on CPUs that have instructions for it. embrew opens
the folder, too (`embrew encode PATH CORPUS DIR`, `evaluate`, `search`), and puts prompts before texts by itself."""


def refused_by_openvino(encoder: Encoder) -> str | None:
    """Return why OpenVINO cannot compute an encoder; raise if it is not installed."""
    openvino()
    return graph_refusal(encoder)


def write_openvino(parts: Parts, out: Path, weights: str) -> None:
    """Write `openvino/openvino_model.xml` and `.bin`, the tokenizer, and what embrew needs to open the folder."""
    model = convert(parts.graph(), "attention_mask")
    if weights == "bf16":
        round_weights(model)
    elif weights == "int8":
        model = _quantised(model, parts)
    (out / GRAPH).parent.mkdir()
    openvino().save_model(model, out / GRAPH, compress_to_fp16=False)
    parts.write_text_files(out)
    _write_encoder(parts, out, weights)
    if weights == "int8":
        _measure(parts, out)


def _write_encoder(parts: Parts, out: Path, weights: str) -> None:
    """Write the settings with both length limits, the ids of learned tokens and contexts, and the encoder's hashes."""
    limit = parts.encoder.max_seq_length
    lengths = {side: min(length, limit) for side, length in parts.lengths.items()}
    encoder = parts.encoder.with_settings(max_length=lengths)
    shape = replace(
        shape_of(encoder),
        memory_ids=[parts.ids[i] for i in encoder.template.memory_ids],
        soft_prompt_ids=[parts.ids[i] for i in encoder.template.soft_prompt_ids],
    )
    contexts = {name: (encoder.contexts[name], prompt.ids) for name, prompt in parts.contexts.items()}
    origin = Origin(encoder.describe(), encoder.weights_hash(), tokenizer_sha256(encoder), weights)
    write_encoder(out, shape, encoder.template, encoder.settings, origin, contexts)


def _quantised(model: Any, parts: Parts) -> Any:
    """Return an `ov.Model` with weights in int8.

    Without texts, weights are compressed with a scale and a zero point per channel; OpenVINO quantises activations
    while it computes, `GROUP` values at a time, and the model says so to whoever opens it. With texts, activations have
    fixed ranges, which the texts give.

    Args:
        model: in float32, inputs `input_ids` and `attention_mask`.
        parts: the encoder, with the texts.
    """
    library = nncf()
    with quiet("nncf"):
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


def _measure(parts: Parts, out: Path) -> None:
    """Compare the written folder with the encoder, and write the result into `parts.parity`.

    `int8` holds the mean and the smallest cosine and the scores; `least_cosine`, what a reference text may have at
    least when the folder is verified or opened.

    Raises:
        RuntimeError: the mean cosine is below `parts.int8.min_cosine`.
    """
    int8, settings = read_encoder(out), parts.int8
    options: dict[str, Any] = {"show_progress_bar": False, "batch_size": max(1, min(8, 16_384 // int8.max_seq_length))}
    by_case = []
    for case in parts.parity["cases"]:
        named = {"prompt_name": case["prompt_name"]} if case["method"] == "encode" and not case.get("default") else {}
        texts = [text["text"] for text in case["texts"]]
        vectors = getattr(int8, case["method"])(texts, max_length=case["max_length"], **named, **options)
        wanted = np.array([text["vector"] for text in case["texts"]], dtype=np.float32)
        by_case.append(cosines(np.asarray(vectors), wanted))
    compared, texts = by_case[0], list(settings.texts)
    if texts:
        options["max_length"] = parts.encoder.max_seq_length
        ours, wanted = (np.asarray(model.encode_document(texts, **options)) for model in (int8, parts.encoder))
        compared = np.concatenate([compared, cosines(ours, wanted)])
    mean, least = float(compared.mean()), float(compared.min())
    logger.info("int8: cosine to the encoder's vectors %.4f on average, %.4f at least", mean, least)
    if not mean >= settings.min_cosine:
        raise RuntimeError(
            f"weights in int8 change the vectors too much: the mean cosine over {len(compared)} texts is {mean:.4f} "
            f"(smallest {least:.4f}), allowed {settings.min_cosine}; export with --weights bf16, "
            + ("without --calibrate, " if texts else "")
            + "or with a lower --min-cosine"
        )
    scores = {}
    if settings.score is not None:
        before, after = settings.score(parts.encoder), settings.score(int8)
        scores = {name: {"encoder": before[name], "int8": after[name]} for name in before}
    for name, score in scores.items():
        logger.info("%s: encoder %.4f, int8 %.4f", name, score["encoder"], score["int8"])
    fixed = f"too, with ranges of {len(texts)} texts"
    parts.parity["int8"] = {
        "activations": fixed if texts else f"while computing, {GROUP} values at a time",
        "texts": len(compared),
        "mean_cosine": round(mean, 6),
        "min_cosine": round(least, 6),
        "allowed_mean_cosine": settings.min_cosine,
        "dev": scores,
    }
    parts.parity["least_cosine"] = round(float(np.concatenate(by_case).min()) - ALLOWED, 4)


def _options(out: Path, parity: Mapping[str, Any]) -> dict[str, Any]:
    rounded = parity["runtimes"]["openvino"] != "fp32" and computes(torch.bfloat16, torch.device("cpu"))
    return {"precision": "bf16" if rounded and cores() > 1 else "f32"}  # see `is_gated`


def _least_cosine(parity: Mapping[str, Any], weights: str) -> float | None:
    return None if weights == "fp32" else float(parity.get("least_cosine", LEAST_COSINE))


def _note(parts: Parts) -> str:
    return OPEN.format(limit=parts.encoder.max_seq_length, prompt=parts.first_prompt())


OPENVINO = Runtime(
    "openvino",
    "OpenVINO",
    refusal=refused_by_openvino,
    opening=OPENING,
    write=write_openvino,
    options=_options,
    weights=("fp32", "bf16", "int8"),
    least_cosine=_least_cosine,
    note=_note,
)
