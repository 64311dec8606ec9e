"""ONNX: one graph from token ids to vectors, verified with ONNX Runtime and the tokenizers library alone."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file
from torch.export import Dim

from embrew.encoder import Encoder
from embrew.export.comparing import require_same_ids, require_same_vectors
from embrew.export.fresh_process import run_fresh
from embrew.export.graph import graph_of
from embrew.export.parts import Parts
from embrew.export.runtimes.runtime import Runtime
from embrew.export.text_files import write_text_files
from embrew.runtimes.graph import OUTPUT, check_graph

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUTS = ("input_ids", "attention_mask")  # the names that FastEmbed, Vespa and transformers.js use
LARGEST = 1_500_000_000  # bytes of weights within the file itself, which protobuf limits to 2 GB
FOLDER, FILE, WEIGHTS = "onnx", "model.onnx", "model.onnx_data"  # as transformers.js looks for them
OPEN_ONNX = """
import json, sys
import numpy as np
import onnxruntime
from safetensors.numpy import save_file
from tokenizers import Tokenizer
folder, out = sys.argv[1:3]
parity = json.load(open(folder + "/parity.json", encoding="utf-8"))
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.encode_special_tokens = True  # names of special tokens in a text are text
tokenizer.enable_truncation(parity["max_length"])
session = onnxruntime.InferenceSession(folder + "/onnx/model.onnx", providers=["CPUExecutionProvider"])
def run(rows):
    width = max(1, *map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    return session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]
ids, found = [], {}
size = max(1, min(8, 16384 // parity["max_length"]))
for number, case in enumerate(parity["cases"]):
    rows = [tokenizer.encode((case["prompt"] or "") + text["text"]).ids for text in case["texts"]]
    found[str(number)] = np.concatenate([run(rows[i : i + size]) for i in range(0, len(rows), size)])
    found[f"{number} alone"] = np.concatenate([run([row]) for row in rows])
    ids.append(rows)
save_file(found, out)
json.dump(ids, open(out + ".ids", "w"))
"""


OPEN = """`onnx/model.onnx` is for ONNX Runtime:

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("PATH/tokenizer.json")
tokenizer.encode_special_tokens = True  # names of special tokens in a text stay text
tokenizer.enable_truncation({limit})
tokenizer.enable_padding()
session = onnxruntime.InferenceSession("PATH/onnx/model.onnx")
rows = tokenizer.encode_batch([{prompt!r} + "…"])
inputs = {{"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}}
vectors = session.run(["sentence_embedding"], {{name: np.array(values) for name, values in inputs.items()}})[0]
```"""


def check_onnx(encoder: Encoder) -> None:
    """Raise if the encoder has no graph, or a package is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f'{", ".join(missing)} not installed; install with: pip install "embrew[onnx]"')
    check_graph(encoder)


def write_onnx(parts: Parts, out: Path, weights: str) -> None:
    """Write `onnx/model.onnx` in float32, for any number of rows and tokens; and the tokenizer."""
    graph = graph_of(parts)
    ids, mask = (torch.ones(2, 7, dtype=torch.long) for _ in INPUTS)  # two objects: one would be taken for one input
    sizes = {0: Dim("batch"), 1: Dim("tokens")}
    with _quiet_exporter():
        program = torch.onnx.export(
            graph,
            (ids, mask),
            dynamo=True,
            input_names=INPUTS,
            output_names=[OUTPUT],
            dynamic_shapes=(sizes, sizes),
            verbose=False,
        )
    assert program is not None  # it is with dynamo=True
    (out / FOLDER).mkdir()
    save(program.model, out / FOLDER / FILE)
    write_text_files(parts, out)


def save(model: Any, path: Path) -> None:
    """Write an ONNX model; weights of more than `LARGEST` bytes go to a file of their own."""
    import onnx_ir

    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    onnx_ir.save(model, path, external_data=WEIGHTS if size > LARGEST else None)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Hide the exporter's notes on packages that it does not need and on names of equal dimensions."""
    names = ("torch.onnx", "torch.onnx._internal.exporter._registration", "onnxscript", "onnx_ir")
    levels = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def verify_onnx(out: Path, parity: Mapping[str, Any], device: str) -> None:
    """Run the file in a process without torch and embrew, texts in padded batches and alone, and compare."""
    with tempfile.TemporaryDirectory(prefix="embrew-parity-") as scratch:
        target = Path(scratch) / "vectors.safetensors"
        done = run_fresh(OPEN_ONNX, str(out), str(target))
        if done.returncode:
            raise RuntimeError(f"ONNX Runtime cannot open the exported model:\n{done.stderr[-2000:]}")
        vectors, ids = load_file(target), json.loads(Path(f"{target}.ids").read_text())
    require_same_ids(out, parity, ids)
    for how, words in (("", "in batches"), (" alone", "alone")):
        found = [vectors[f"{number}{how}"] for number in range(len(ids))]
        require_same_vectors(f"ONNX Runtime ({words})", parity, found)


def note_on_onnx(parts: Parts) -> str:
    """Return how the graph is opened by ONNX Runtime."""
    prompt = next((words for words in parts.prompts.values() if words), "")
    return OPEN.format(limit=parts.encoder.max_seq_length, prompt=prompt)


ONNX = Runtime("onnx", check=check_onnx, write=write_onnx, verify=verify_onnx, note=note_on_onnx)
