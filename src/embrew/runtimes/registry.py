"""All runtimes that an export can be made for, by name."""

from __future__ import annotations

from embrew.runtimes.llama_cpp import LLAMA_CPP
from embrew.runtimes.onnx import ONNX
from embrew.runtimes.openvino import OPENVINO
from embrew.runtimes.runtime import Runtime
from embrew.runtimes.sentence_transformers import SENTENCE_TRANSFORMERS
from embrew.runtimes.tei import TEI
from embrew.runtimes.vllm import VLLM

RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime for runtime in (SENTENCE_TRANSFORMERS, OPENVINO, ONNX, LLAMA_CPP, VLLM, TEI)
}
"""The first whose `files` a folder has opens it."""
