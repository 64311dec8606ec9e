"""Write a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from embrew.export.parts import Parts
from embrew.export.runtimes.llama_cpp.architecture import ARCHITECTURES, tensors, write_architecture
from embrew.export.runtimes.llama_cpp.checks import pooling_type
from embrew.export.runtimes.llama_cpp.pre_tokenizer import kind_of
from embrew.export.runtimes.llama_cpp.vocabulary import vocabulary_of, write_vocabulary
from embrew.storage.parts import check_tokenizer, write_tokenizer

TYPES = {"fp16": "F16", "fp32": "F32", "bf16": "BF16", "int8": "Q8_0"}
"""llama.cpp's name of each type of weights. The default is the first: half the size of fp32, cosines above 0.999."""
PROMPTS = "embrew.prompts"  # keys of our own: prompt names, and what each puts before a text


def write_gguf(parts: Parts, out: Path, weights: str) -> None:
    """Write `NAME-TYPE.gguf` beside the tokenizer's files, and what it needs of clients into `parity.json`."""
    from gguf import GGUFWriter, LlamaFileType

    encoder, kind = parts.encoder, kind_of(parts.tokenizer)
    config, name = parts.model.config, encoder.base.name.rpartition("/")[2]
    path = out / f"{name}-{TYPES[weights]}.gguf"
    rows = parts.model.get_input_embeddings().weight.shape[0]
    writer = GGUFWriter(path, ARCHITECTURES[config.model_type])
    writer.add_name(name)
    writer.add_file_type(int(getattr(LlamaFileType, _file_type(weights))))
    writer.add_quantization_version(2)
    write_architecture(writer, config, limit=encoder.max_seq_length)
    writer.add_causal_attention(bool(encoder.attention.is_causal))
    writer.add_pooling_type(_enum("PoolingType", pooling_type(encoder)))
    added = (encoder.template.first_ids, encoder.template.suffix_ids)
    first, last = (parts.ids.get(ids[0], ids[0]) if ids else None for ids in added)
    write_vocabulary(writer, vocabulary_of(parts.tokenizer, kind, rows), kind, first=first, last=last)
    if parts.prompts:
        writer.add_array(f"{PROMPTS}.names", list(parts.prompts))
        writer.add_array(f"{PROMPTS}.texts", list(parts.prompts.values()))
    for tensor, value in tensors(parts.model):
        data, kept = encoded(tensor, value, TYPES[weights])
        writer.add_tensor(tensor, data, raw_dtype=_enum("GGMLQuantizationType", kept))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if not (out / "tokenizer.json").exists():
        write_tokenizer(parts.tokenizer, out)
        check_tokenizer(parts.tokenizer, out)
    parts.parity["llama.cpp"] = {"file": path.name, "text_preparation": list(kind.preparation)}


def encoded(name: str, value: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Return a tensor's bytes and their type; vectors and norms are F32, rows that Q8_0 cannot divide are F16.

    Raises:
        ValueError: a value does not fit the type.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if value.ndim == 1 or kind == "F32":
        return value.astype(np.float32), "F32"
    if kind == "Q8_0" and value.shape[-1] % 32:
        kind = "F16"
    if kind == "F16" and np.abs(value).max() > np.finfo(np.float16).max:
        raise ValueError(f"{name} has values of up to {np.abs(value).max():.3g}, too large for fp16; use bf16 or fp32")
    return quantize(value, GGMLQuantizationType[kind]), kind


def _file_type(weights: str) -> str:
    return "ALL_F32" if weights == "fp32" else f"MOSTLY_{TYPES[weights]}"


def _enum(name: str, value: Any) -> Any:
    import gguf

    kinds = getattr(gguf, name)
    return kinds[value] if isinstance(value, str) else kinds(value)
