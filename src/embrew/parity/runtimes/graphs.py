"""Graphs from token ids to vectors in ONNX Runtime and OpenVINO, with the tokenizer of their folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embrew.parity.reference import Prompt
from embrew.parity.runtimes.runtime import checked
from embrew.runtimes.openvino import openvino

OUTPUT = "sentence_embedding"
Inputs = dict[str, np.ndarray]


class Graph:
    """A graph and its tokenizer.

    Args:
        name: for users.
        folder: where the tokenizer is.
        run: from the tokenizer's arrays to vectors.
        inputs: names of the graph's inputs.
        reads: see `Runtime`.
    """

    by_words, by_name = True, False

    def __init__(
        self, name: str, folder: Path, run: Callable[[Inputs], Any], inputs: Sequence[str], *, reads: str
    ) -> None:
        from transformers import AutoTokenizer

        self.name, self.run, self.inputs = name, run, inputs
        self.reads: tuple[str, ...] = (reads,)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts in one batch, padded to the longest."""
        found = self.tokenizer(list(texts), truncation=True, padding=True, return_tensors="np")
        given = {name: np.asarray(found[name], dtype=np.int64) for name in self.inputs if name in found}
        return checked(self.run(given), texts, self.name)

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """A graph has no prompts."""
        raise NotImplementedError

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by the folder's tokenizer."""
        return [int(i) for i in self.tokenizer(text, truncation=True)["input_ids"]]


def open_onnx(model: Path) -> Graph:
    """Open a `.onnx` file in ONNX Runtime.

    Raises:
        ValueError: ONNX Runtime is not installed, cannot read the file, or there is no tokenizer beside it.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ValueError(f'{model} needs ONNX Runtime: pip install "embrew[onnx]"') from None
    try:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"ONNX Runtime cannot open {model}: {_first_line(error)}") from error
    output = _output([node.name for node in session.get_outputs()], model)
    inputs = [node.name for node in session.get_inputs()]
    name = f"{model} (ONNX Runtime {onnxruntime.__version__})"
    return Graph(name, _tokenizer_of(model), lambda given: session.run([output], given)[0], inputs, reads="onnx")


def open_openvino(model: Path) -> Graph:
    """Open a model of OpenVINO, by its `.xml` file, on the CPU, in float32.

    Raises:
        ValueError: OpenVINO is not installed, cannot read the file, or there is no tokenizer beside it.
    """
    try:
        library = openvino()
    except ImportError as error:
        raise ValueError(f"{model}: {error}") from None
    try:
        compiled = library.Core().compile_model(str(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    except Exception as error:
        raise ValueError(f"OpenVINO cannot open {model}: {_first_line(error)}") from error
    output = _output([name for port in compiled.outputs for name in port.get_names()], model)
    inputs = [port.get_any_name() for port in compiled.inputs]
    name = f"{model} (OpenVINO {library.__version__.partition('-')[0]})"
    return Graph(name, _tokenizer_of(model), lambda given: compiled(given)[output], inputs, reads="openvino")


def _output(names: Sequence[str], model: Path) -> str:
    """Return the name of the output that holds one vector per text."""
    if OUTPUT not in names:
        raise ValueError(
            f"{model} has the outputs {', '.join(names)}; one named {OUTPUT} is needed, with one vector per text: "
            "compare with a graph that embrew export made"
        )
    return OUTPUT


def _tokenizer_of(model: Path) -> Path:
    """Return the folder of the model, or the one above it, that has a tokenizer."""
    for folder in (model.parent, model.parent.parent):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise ValueError(f"{model} has no tokenizer.json beside it or one folder above; copy it there")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
