"""llama.cpp: a GGUF file, verified by llama-cpp-python."""

from __future__ import annotations

from embrew.export.runtimes.llama_cpp.checks import check_llama_cpp
from embrew.export.runtimes.llama_cpp.note import caution_on_gguf, note_on_gguf
from embrew.export.runtimes.llama_cpp.verification import verify_gguf
from embrew.export.runtimes.llama_cpp.writing import TYPES, write_gguf
from embrew.export.runtimes.runtime import Runtime

LLAMA_CPP = Runtime(
    "llama.cpp",
    check=check_llama_cpp,
    write=write_gguf,
    verify=verify_gguf,
    weights=tuple(TYPES),
    caution=caution_on_gguf,
    note=note_on_gguf,
)
