"""Compare a runtime's vectors with those of an encoder or export, and name the cause of a difference."""

from typing import Literal

Kind = Literal["sentence-transformers", "embrew", "openvino", "onnx", "llama.cpp", "openai", "tei", "ollama"]
"""Kinds of runtimes."""
