"""OpenVINO: the whole encoder as one graph, and the tokenizer; verified in a process without embrew."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file

from embrew.export.comparing import require_same_ids, require_same_vectors
from embrew.export.fresh_process import run_fresh
from embrew.export.graph import graph_of
from embrew.export.parts import Parts
from embrew.export.runtimes.openvino_int8 import measure, quantised
from embrew.export.runtimes.runtime import Runtime
from embrew.export.text_files import write_text_files
from embrew.runtimes.conversion import convert, round_weights
from embrew.runtimes.converted import LEAST_COSINE, shape_of
from embrew.runtimes.encoder import Origin
from embrew.runtimes.folder import GRAPH, write_encoder
from embrew.runtimes.graph import check_graph
from embrew.runtimes.library import openvino
from embrew.storage.base_model import computes
from embrew.text_encoder.hashes import tokenizer_sha256

OPEN_GRAPH = """
import json, sys
sys.modules["openvino_telemetry"] = None  # it would send a usage event
import numpy as np, openvino
from safetensors.numpy import save_file
from transformers import AutoTokenizer
folder, out, precision = sys.argv[1:4]
parity = json.load(open(folder + "/parity.json"))
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
options = {"INFERENCE_PRECISION_HINT": precision}
graph = openvino.Core().compile_model(folder + "/openvino/openvino_model.xml", "CPU", options)
vectors, ids = {}, []
for number, case in enumerate(parity["cases"]):
    texts = [(case["prompt"] or "") + text["text"] for text in case["texts"]]
    found, own = [], []
    for start in range(0, len(texts), 8):
        batch = tokenizer(texts[start : start + 8], padding=True, truncation=True, max_length=parity["max_length"],
                          return_tensors="np")
        mask = batch["attention_mask"].astype(np.int64)
        given = {"input_ids": batch["input_ids"].astype(np.int64), "attention_mask": mask}
        found.append(np.array(graph(given)["sentence_embedding"]))
        own += [row[real == 1].tolist() for row, real in zip(batch["input_ids"], mask)]
    vectors[str(number)] = np.concatenate(found)
    ids.append(own)
save_file(vectors, out)
json.dump(ids, open(out + ".ids", "w"))
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


def _unchanged(model: Any, parts: Parts) -> Any:
    return model


def _rounded(model: Any, parts: Parts) -> Any:
    round_weights(model)
    return model


COMPRESSED: dict[str, Callable[[Any, Parts], Any]] = {"fp32": _unchanged, "bf16": _rounded, "int8": quantised}
"""What is done to the converted `ov.Model` before it is saved, by the type of the weights."""


def check_openvino(encoder: Any) -> None:
    """Raise if OpenVINO cannot compute an encoder, or is not installed."""
    openvino()
    check_graph(encoder)


def write_openvino(parts: Parts, out: Path, weights: str) -> None:
    """Write `openvino/openvino_model.xml` and `.bin`, the tokenizer, and what embrew needs to open the folder."""
    model = COMPRESSED[weights](convert(graph_of(parts), "attention_mask"), parts)
    (out / GRAPH).parent.mkdir()
    openvino().save_model(model, out / GRAPH, compress_to_fp16=False)
    write_text_files(parts, out)
    _write_encoder(parts, out, weights)
    if weights == "int8":
        measure(parts, out)


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
    contexts = {name: (encoder.contexts[name], baked.ids) for name, baked in parts.baked.items()}
    origin = Origin(encoder.describe(), encoder.weights_hash(), tokenizer_sha256(encoder), weights)
    write_encoder(out, shape, encoder.template, encoder.settings, origin, contexts)


def note_on_openvino(parts: Parts) -> str:
    """Return how the graph is opened, by OpenVINO alone and by embrew."""
    prompt = next((words for words in parts.prompts.values() if words), "")
    return OPEN.format(limit=parts.encoder.max_seq_length, prompt=prompt)


def verify_openvino(out: Path, parity: Mapping[str, Any], device: str) -> None:
    """Open the folder with OpenVINO and the tokenizer alone, in a separate process, and compare ids and vectors."""
    weights = parity["runtimes"]["openvino"]
    precision = "bf16" if weights != "fp32" and computes(torch.bfloat16, torch.device("cpu")) else "f32"
    with tempfile.TemporaryDirectory(prefix="embrew-parity-") as scratch:
        target = Path(scratch) / "vectors.safetensors"
        done = run_fresh(OPEN_GRAPH, str(out), str(target), precision)
        if done.returncode:
            raise RuntimeError(f"OpenVINO cannot open the exported folder:\n{done.stderr[-2000:]}")
        vectors, ids = load_file(target), json.loads(Path(f"{target}.ids").read_text())
    require_same_ids(out, parity, ids)
    least = None if weights == "fp32" else parity.get("least_cosine", LEAST_COSINE)
    found = [vectors[str(number)] for number in range(len(ids))]
    require_same_vectors(f"OpenVINO with {weights} weights", parity, found, least_cosine=least)


OPENVINO = Runtime(
    "openvino",
    check=check_openvino,
    write=write_openvino,
    verify=verify_openvino,
    weights=tuple(COMPRESSED),
    note=note_on_openvino,
)
