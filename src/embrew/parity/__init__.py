"""Compare a runtime's vectors with those of an encoder or export, and name the cause of a difference."""

from enum import StrEnum


class Kind(StrEnum):
    """A kind of runtime."""

    SENTENCE_TRANSFORMERS = "sentence-transformers"
    EMBREW = "embrew"
    OPENVINO = "openvino"
    ONNX = "onnx"
    LLAMA_CPP = "llama.cpp"
    OPENAI = "openai"
    TEI = "tei"
    OLLAMA = "ollama"
