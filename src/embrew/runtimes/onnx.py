"""ONNX: one graph from token ids to vectors, run by ONNX Runtime and the tokenizers library alone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.export import Dim

from embrew.encoder import Encoder
from embrew.runtimes.graph import OUTPUT, graph_refusal
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.runtime import CompiledGraph, OpenedGraph, Runtime, hide_output

if TYPE_CHECKING:
    import onnx_ir

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
LOGGERS = ("torch.onnx", "torch.onnx._internal.exporter._registration", "onnxscript", "onnx_ir")
INPUTS = ("input_ids", "attention_mask")  # the names that FastEmbed, Vespa and transformers.js use
LARGEST = 1_500_000_000  # bytes of weights within the file itself, which protobuf limits to 2 GB
FOLDER, FILE, WEIGHTS = "onnx", "model.onnx", "model.onnx_data"  # as transformers.js looks for them
SCRIPT = """
import numpy as np
import onnxruntime
from tokenizers import Tokenizer
version = onnxruntime.__version__
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.encode_special_tokens = True  # names of special tokens in a text are text
tokenizer.enable_truncation(parity["max_length"])
session = onnxruntime.InferenceSession(folder + "/onnx/model.onnx", providers=["CPUExecutionProvider"])
def encode(case, texts):
    rows = [tokenizer.encode((case["prompt"] or "") + text).ids for text in texts]
    width = max(1, *map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    return zip(rows, session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0])
"""
USAGE = """`onnx/model.onnx` is for ONNX Runtime:

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


def refused_by_onnx(encoder: Encoder) -> str | None:
    """Return why the encoder has no graph; raise if a package is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f'{", ".join(missing)} not installed; install with: pip install "embrew[onnx]"')
    return graph_refusal(encoder)


def write_onnx(portable: PortableEncoder, out: Path, weights: str) -> None:
    """Write `onnx/model.onnx` in float32, for any number of rows and tokens; and the tokenizer."""
    ids, mask = (torch.ones(2, 7, dtype=torch.long) for _ in INPUTS)  # two objects: one would be taken for one input
    sizes = {0: Dim("batch"), 1: Dim("tokens")}
    with hide_output(*LOGGERS):
        program = torch.onnx.export(
            portable.graph(),
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
    portable.write_text_files(out)


def save(model: onnx_ir.Model, path: Path) -> None:
    """Write an ONNX model; weights of more than `LARGEST` bytes go to a file of their own."""
    import onnx_ir

    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    onnx_ir.save(model, path, external_data=WEIGHTS if size > LARGEST else None)


def _compiled(path: Path) -> CompiledGraph:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = ([node.name for node in nodes] for nodes in (session.get_inputs(), session.get_outputs()))
    software = f"ONNX Runtime {onnxruntime.__version__}"
    return CompiledGraph(software, lambda arrays: session.run([OUTPUT], arrays)[0], inputs, outputs)


ONNX = Runtime(
    "onnx",
    "ONNX Runtime",
    refusal=refused_by_onnx,
    script=SCRIPT,
    opening=lambda folder, parity: f'onnxruntime.InferenceSession("{folder}/onnx/model.onnx")',
    write=write_onnx,
    usage=lambda portable: portable.usage(USAGE),
    files=("*.onnx", "onnx/*.onnx"),
    open=lambda path: OpenedGraph(path, "onnx", "ONNX Runtime", _compiled),
)
