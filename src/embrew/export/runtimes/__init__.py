"""The runtimes that an export can be made for."""

from __future__ import annotations

from embrew.export.runtime import Runtime
from embrew.export.runtimes.llama_cpp import LLAMA_CPP
from embrew.export.runtimes.onnx import ONNX
from embrew.export.runtimes.openvino import OPENVINO
from embrew.export.runtimes.sentence_transformers import SENTENCE_TRANSFORMERS
from embrew.export.runtimes.tei import TEI
from embrew.export.runtimes.vllm import VLLM

RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime for runtime in (SENTENCE_TRANSFORMERS, OPENVINO, ONNX, LLAMA_CPP, VLLM, TEI)
}
