"""OpenVINO: imported without its telemetry; models converted from graphs, compiled and run."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from embrew.runtimes.graph import OUTPUT
from embrew.threads import cores

if TYPE_CHECKING:
    from openvino import Model

logger = logging.getLogger(__name__)
EXAMPLE = 2, 6  # rows and tokens of the input that is traced; both are dynamic in the result


def nncf() -> ModuleType:
    """Return the module `nncf`, which quantises models of OpenVINO.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    openvino()  # hides the telemetry of both
    return _imported("nncf", "NNCF")


def openvino() -> ModuleType:
    """Return the module `openvino`.

    Importing it sends a usage event over the network, unless `openvino_telemetry` cannot be imported; so that module is
    hidden from it first, and from NNCF.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    if "openvino_telemetry" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    return _imported("openvino", "OpenVINO")


def _imported(name: str, title: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f'{title} is not installed; install it with: pip install "embrew[openvino]"') from error


def convert(graph: nn.Module, second: str) -> Model:
    """Return an `ov.Model` of a graph, for any number of rows and tokens.

    Args:
        graph: `SentenceGraph` or `LabelledGraph`, whose inputs are `input_ids` and `second`.
        second: name of the second input.
    """
    library = openvino()
    ids = torch.zeros(EXAMPLE, dtype=torch.long)
    labels = torch.full(EXAMPLE, 2)
    labels[1, 4:] = 0
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # the tracer warns of sizes that Python reads, which are constants here
        model = library.convert_model(graph, example_input={"input_ids": ids, second: labels})
    model.outputs[0].get_tensor().set_names({OUTPUT})
    return model


def round_weights(model: Model) -> None:
    """Store the weights of an `ov.Model` as bfloat16, in place; its vectors of constants stay float32."""
    library = openvino()
    opset = library.opset13
    for node in model.get_ordered_ops():
        is_weight = node.get_type_name() == "Constant" and len(node.get_output_shape(0)) >= 2
        if not is_weight or node.get_element_type() != library.Type.f32 or node.data.size < 2:
            continue
        rounded = torch.from_numpy(np.array(node.data)).to(torch.bfloat16).view(torch.int16).numpy()
        tensor = library.Tensor(rounded, library.Shape(rounded.shape), library.Type.bf16)
        weight = opset.convert(library.op.Constant(tensor, shared_memory=False), "f32")
        for target in list(node.output(0).get_target_inputs()):
            target.replace_source_output(weight.output(0))
    model.validate_nodes_and_infer_types()


def is_gated(model: Model) -> bool:
    """Return whether an `ov.Model` has gated feed-forward layers whose weights are not int8.

    In bfloat16 on CPUs with AMX, OpenVINO 2026.4 merges each into one operation that needs two threads; with one, a
    division by zero ends the process (its issue 33300).
    """
    nodes = model.get_ops()
    activations = [node for node in nodes if node.get_type_name() in ("Swish", "Gelu")]
    targets = [target.get_node() for node in activations for target in node.output(0).get_target_inputs()]
    constants = (node.get_element_type() for node in nodes if node.get_type_name() == "Constant")
    quantised = any(element_type.get_type_name() in ("i8", "u8") for element_type in constants)
    return not quantised and any(node.get_type_name() == "Multiply" for node in targets)


class Program:
    """A model of OpenVINO, compiled for the CPU, as a function of tensors.

    It runs as many threads as PyTorch would (`OMP_NUM_THREADS`), and may be called from several threads, one at a time.

    Args:
        model: an `ov.Model`, or the path of its XML file.
        bfloat16: compute in bfloat16 if it can; otherwise in float32.

    Attributes:
        bfloat16: whether it computes in bfloat16.
    """

    def __init__(self, model: Model | Path, *, bfloat16: bool) -> None:
        library = openvino()
        core = library.Core()
        read_model = core.read_model(model) if isinstance(model, Path) else model
        self.bfloat16 = bfloat16 and not (is_gated(read_model) and min(torch.get_num_threads(), cores()) == 1)
        if bfloat16 and not self.bfloat16:
            logger.warning(
                "OpenVINO computes in float32, since it fails on this model in bfloat16 with a single thread; set "
                "OMP_NUM_THREADS=2, where there are cores"
            )
        options = {
            "INFERENCE_PRECISION_HINT": "bf16" if self.bfloat16 else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.compiled = core.compile_model(read_model, "CPU", options)
        self.dimensions = int(self.compiled.output(0).get_partial_shape()[1].get_length())
        self._request = self.compiled.create_infer_request()
        self._lock = threading.Lock()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the output for inputs in their order, float32 `(rows, dimensions)`."""
        with self._lock:
            outputs = self._request.infer([tensor.numpy() for tensor in inputs], share_inputs=True)
            return torch.from_numpy(np.array(outputs[self.compiled.output(0)], dtype=np.float32))
