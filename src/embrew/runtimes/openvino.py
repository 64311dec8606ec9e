"""OpenVINO: export of the encoder, pooling included, as one graph in float32, bfloat16 or int8, and opening it."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from embrew.check_passport import distances
from embrew.encoder import Encoder
from embrew.files.formats import OPENVINO as FORMAT
from embrew.files.reading import content_of, read_json
from embrew.files.writing import write_json
from embrew.machine import cores
from embrew.model.contexts import Context, PreparedContext
from embrew.runtimes.graph import OUTPUT, graph_refusal
from embrew.runtimes.openvino_encoder import (
    SHAPE_FIELDS,
    OpenVINOEncoder,
    Origin,
    Program,
    Shape,
    convert,
    in_vocabulary,
    nncf,
    openvino,
    round_weights,
)
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.reference import LEAST_COSINE, Parity, batch_size, compare_with_reference, encode_case
from embrew.runtimes.runtime import CompiledGraph, OpenedGraph, Runtime, hide_output
from embrew.settings.encoder import EncoderSettings
from embrew.storage.base_model import pick_dtype, supports_natively
from embrew.storage.parts import check_folder, open_tokenizer
from embrew.text.tokens import Row
from embrew.text_encoder import tokenizer_sha256

if TYPE_CHECKING:
    from openvino import Model

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")
GRAPH = "openvino/openvino_model.xml"
ACTIVATION_GROUP_SIZE = 128
"""Group size of dynamic quantisation: number of activations that share a scale. See the benchmarks."""
COSINE_SLACK = 0.01  # cosines may be lower by this on another machine than the one that wrote the export
SCRIPT = """
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
OPENING = (
    'openvino.Core().compile_model("{folder}/openvino/openvino_model.xml", "CPU", '
    '{{"INFERENCE_PRECISION_HINT": "f32"}}); or embrew encode {quoted} TEXTS VECTORS'
)
USAGE = """`openvino/openvino_model.xml` is for OpenVINO:

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
    """Return the reason why an encoder cannot be exported for OpenVINO, or None; raise if it is not installed."""
    openvino()
    return graph_refusal(encoder)


def write_openvino(portable: PortableEncoder, out: Path, weights: str) -> None:
    """Write `openvino/openvino_model.xml` and `.bin`, the tokenizer, and the settings with which embrew opens them.

    Args:
        portable: the encoder, prepared for the export.
        out: folder that is written.
        weights: dtype of the stored weights: `fp32`, `bf16` or `int8`.
    """
    model = convert(portable.graph(), "attention_mask")
    if weights == "bf16":
        round_weights(model)
    elif weights == "int8":
        model = _quantise(model, portable)
    (out / GRAPH).parent.mkdir()
    openvino().save_model(model, out / GRAPH, compress_to_fp16=False)
    portable.write_text_files(out)
    _write_encoder(portable, out, weights)
    if weights == "int8":
        _compare_int8(portable, out)


def _write_encoder(portable: PortableEncoder, out: Path, weights: str) -> None:
    """Write the JSON file with settings, shape and contexts that `read_encoder` reads beside graph and tokenizer.

    The settings have both length limits. Ids of learned tokens and of contexts are those of the exported tokenizer.
    `first_ids` and `last_ids` are the special tokens that the encoder's own tokenizer adds.
    """
    limit = portable.encoder.max_seq_length
    lengths = {side: min(length, limit) for side, length in portable.lengths.items()}
    encoder = portable.encoder.with_settings(max_length=lengths)
    template, backbone = encoder.template, encoder.backbone
    sizes = {name: getattr(backbone, name) for name in SHAPE_FIELDS}
    sizes["max_positions"] = None if backbone.max_positions == float("inf") else backbone.max_positions
    sizes["memory_ids"] = [portable.ids[i] for i in template.memory_ids]
    sizes["soft_prompt_ids"] = [portable.ids[i] for i in template.soft_prompt_ids]
    contexts = {
        name: {
            "instruction": encoder.contexts[name].context.instruction,
            "ids": prompt.ids,
            "segments": encoder.contexts[name].row.segments,
        }
        for name, prompt in portable.contexts.items()
    }
    origin = Origin(encoder.describe(), encoder.weights_hash(), tokenizer_sha256(encoder), weights)
    values = {
        "format": FORMAT.number,
        "settings": encoder.settings.as_dict(),
        "shape": {**sizes, "kept_prefix": None},  # `kept_prefix` is not read
        "first_ids": template.bos_ids,
        "last_ids": template.sep_ids,
        "contexts": contexts,
        "origin": asdict(origin),
    }
    write_json(out / FORMAT.file, values)


def _quantise(model: Model, portable: PortableEncoder) -> Model:
    """Return an `ov.Model` with weights in int8.

    Without calibration texts, only weights are quantised, with a scale and a zero point per channel; OpenVINO then
    quantises activations dynamically, `ACTIVATION_GROUP_SIZE` values at a time, as an option stored in the model asks.
    With calibration texts, activations are quantised statically, with ranges measured on these texts.

    Args:
        model: in float32, inputs `input_ids` and `attention_mask`.
        portable: the encoder, with the calibration texts in `int8.texts`.
    """
    nncf_module = nncf()
    with hide_output("nncf"):
        if portable.int8.texts:
            rows = [_inputs(portable, text) for text in portable.int8.texts]
            return nncf_module.quantize(
                model,
                nncf_module.Dataset(rows),
                model_type=nncf_module.ModelType.TRANSFORMER,  # attention's products of activations stay float
                preset=nncf_module.QuantizationPreset.MIXED,
                subset_size=len(rows),
            )
        model = nncf_module.compress_weights(model, mode=nncf_module.CompressWeightsMode.INT8_ASYM)
        model.set_rt_info(str(ACTIVATION_GROUP_SIZE), ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
        return model


def _inputs(portable: PortableEncoder, text: str) -> dict[str, np.ndarray]:
    """Return the graph's inputs for one text, with the prompt of documents."""
    prompted_text = portable.prompts.get("document", "") + text
    ids = portable.tokenizer(prompted_text, truncation=True, max_length=portable.encoder.max_seq_length)["input_ids"]
    input_ids = np.array([ids], dtype=np.int64)
    return {"input_ids": input_ids, "attention_mask": np.ones_like(input_ids)}


def _compare_int8(portable: PortableEncoder, out: Path) -> None:
    """Compare the vectors of an int8 export with those of the encoder, and add the result to `portable.parity`.

    There, `int8` holds the mean and the smallest cosine, and the scores on dev; `least_cosine`, the smallest cosine of
    a reference text that is accepted when the folder is verified or opened.

    Raises:
        RuntimeError: the mean cosine is below `portable.int8.min_cosine`.
    """
    int8_encoder, int8_settings = read_encoder(out), portable.int8
    texts_per_batch = batch_size(int8_encoder.max_seq_length)
    cosines_by_case = []
    for case in portable.parity["cases"]:
        texts = [text["text"] for text in case["texts"]]
        vectors = encode_case(int8_encoder, case, texts, max_length=case["max_length"], batch_size=texts_per_batch)
        expected = np.array([text["vector"] for text in case["texts"]], dtype=np.float32)
        cosines_by_case.append(1 - distances(vectors, expected))
    compared_cosines, texts = cosines_by_case[0], list(int8_settings.texts)
    if texts:
        limit = portable.encoder.max_seq_length
        quantised, expected = (
            np.asarray(
                encoder.encode_document(texts, show_progress_bar=False, batch_size=texts_per_batch, max_length=limit)
            )
            for encoder in (int8_encoder, portable.encoder)
        )
        compared_cosines = np.concatenate([compared_cosines, 1 - distances(quantised, expected)])
    mean_cosine, smallest = float(compared_cosines.mean()), float(compared_cosines.min())
    logger.info("int8: cosine to the encoder's vectors %.4f on average, %.4f at least", mean_cosine, smallest)
    if not mean_cosine >= int8_settings.min_cosine:
        raise RuntimeError(
            f"weights in int8 change the vectors too much: the mean cosine over {len(compared_cosines)} texts is "
            f"{mean_cosine:.4f} (smallest {smallest:.4f}), allowed {int8_settings.min_cosine}; "
            "export with --weights bf16, " + ("without --calibrate, " if texts else "") + "or with a lower --min-cosine"
        )
    scores = {}
    if int8_settings.score is not None:
        encoder_scores, int8_scores = int8_settings.score(portable.encoder), int8_settings.score(int8_encoder)
        scores = {name: {"encoder": encoder_scores[name], "int8": int8_scores[name]} for name in encoder_scores}
    for name, score in scores.items():
        logger.info("%s: encoder %.4f, int8 %.4f", name, score["encoder"], score["int8"])
    with_ranges = f"too, with ranges of {len(texts)} texts"
    portable.parity["int8"] = {
        "activations": with_ranges if texts else f"while computing, {ACTIVATION_GROUP_SIZE} values at a time",
        "texts": len(compared_cosines),
        "mean_cosine": round(mean_cosine, 6),
        "min_cosine": round(smallest, 6),
        "allowed_mean_cosine": int8_settings.min_cosine,
        "dev": scores,
    }
    portable.parity["least_cosine"] = round(float(np.concatenate(cosines_by_case).min()) - COSINE_SLACK, 4)


def is_openvino(folder: Path) -> bool:
    """Return whether a folder is an export for OpenVINO."""
    return os.path.lexists(folder / FORMAT.file)


def open_openvino(folder: Path, *, dtype: str = "auto") -> OpenVINOEncoder:
    """Open an export for OpenVINO, and compare it with the vectors in its `parity.json`.

    Args:
        folder: the export; its files are compared with its checksums first.
        dtype: of the arithmetic, `float32` or `bfloat16`; `auto`: bfloat16 for weights in bf16 or int8 if this CPU
            computes in it, otherwise float32.

    Raises:
        ValueError: a damaged folder; bfloat16, and this CPU only emulates it; or OpenVINO gives other vectors here
            than those in `parity.json`.
    """
    check_folder(folder)
    encoder = read_encoder(folder, dtype=dtype)
    exact = encoder.origin.weights == "fp32" and not encoder.in_bfloat16
    compare_with_reference(encoder, folder, exact=exact, software="OpenVINO")
    return encoder


def read_encoder(folder: Path, *, dtype: str = "auto") -> OpenVINOEncoder:
    """Open the encoder of a folder without comparing checksums and `parity.json`, which may not be written yet."""
    path = folder / FORMAT.file
    values = read_json(path, kind=FORMAT)
    with content_of(path):
        origin = Origin(**values["origin"])
        sizes = {name: values["shape"][name] for name in SHAPE_FIELDS}
        shape = Shape(**{**sizes, "max_positions": sizes["max_positions"] or float("inf")})
        settings = EncoderSettings.from_dict(values["settings"])
        contexts = {name: _context(context) for name, context in values["contexts"].items()}
        first, last = list(values["first_ids"]), list(values["last_ids"])
    return OpenVINOEncoder(
        Program(folder / GRAPH, bfloat16=_bfloat16(dtype, origin.weights)),
        shape,
        _with_special_tokens(open_tokenizer(folder), first, last),
        settings,
        origin,
        contexts=contexts,
    )


def _bfloat16(dtype: str, weights: str) -> bool:
    """Return whether to compute in bfloat16."""
    if dtype == "auto":
        return weights in ("bf16", "int8") and supports_natively(torch.bfloat16, CPU)
    return pick_dtype(dtype, CPU) == torch.bfloat16


def _context(values: dict[str, Any]) -> PreparedContext:
    row = Row(list(values["ids"]), list(values["segments"]))
    return in_vocabulary(PreparedContext(Context(values["instruction"]), row, torch.zeros(0, 0)), row.ids)


def _with_special_tokens(
    tokenizer: PreTrainedTokenizerBase, first: list[int], last: list[int]
) -> PreTrainedTokenizerBase:
    """Let the exported tokenizer add the special tokens that the encoder's own does; the template adds the others."""
    ids_by_name = {"first": first, "last": last}
    single_template = " ".join([*(["first"] if first else []), "$A", *(["last"] if last else [])])
    special_tokens: Any = [
        {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)}
        for name, ids in ids_by_name.items()
        if ids
    ]
    processor = processors.TemplateProcessing(single=single_template, special_tokens=special_tokens)
    tokenizer.backend_tokenizer.post_processor = processor
    return tokenizer


def _options(out: Path, parity: Parity) -> dict[str, str]:
    in_bfloat16 = parity["runtimes"]["openvino"] != "fp32" and supports_natively(torch.bfloat16, CPU)
    return {"precision": "bf16" if in_bfloat16 and cores() > 1 else "f32"}  # see `is_gated`


def _least_cosine(parity: Parity, weights: str) -> float | None:
    return None if weights == "fp32" else float(parity.get("least_cosine", LEAST_COSINE))


def _compile(path: Path) -> CompiledGraph:
    compiled = Program(path, bfloat16=False).compiled
    inputs, outputs = ([port.get_any_name() for port in ports] for ports in (compiled.inputs, compiled.outputs))
    software = f"OpenVINO {openvino().__version__.partition('-')[0]}"
    return CompiledGraph(software, lambda arrays: compiled(arrays)[OUTPUT], inputs, outputs)


OPENVINO = Runtime(
    "openvino",
    "OpenVINO",
    refusal=refused_by_openvino,
    script=SCRIPT,
    opening=lambda folder, parity: OPENING.format(folder=folder, quoted=quote(str(folder))),
    write=write_openvino,
    options=_options,
    weights=("fp32", "bf16", "int8"),
    least_cosine=_least_cosine,
    usage=lambda portable: portable.usage(USAGE),
    files=("*.xml", "openvino/*.xml"),
    open=lambda path: OpenedGraph(path, "openvino", "OpenVINO", _compile),
)
