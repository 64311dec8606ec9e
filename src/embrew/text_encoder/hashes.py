"""SHA-256 of what decides the vectors of an encoder: weights, modules, prompts, tokenizer."""

import hashlib
import json
from typing import Any

from embrew.text_encoder.interface import TextEncoder, resolved_prompts

SPECIAL = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")


def model_hash(encoder: TextEncoder) -> str:
    """SHA-256 of what defines the vectors: the encoder's own `weights_hash()`, or weights, modules and prompts."""
    own = getattr(encoder, "weights_hash", None)
    if callable(own):
        return str(own())
    import torch  # here, so that reading a recipe stays quick

    digest = hashlib.sha256()
    modules = (
        [type(module).__name__ for module in encoder] if hasattr(encoder, "__iter__") else [type(encoder).__name__]
    )
    digest.update(repr((modules, resolved_prompts(encoder), getattr(encoder, "max_seq_length", None))).encode())
    state = encoder.state_dict() if hasattr(encoder, "state_dict") else {}
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tokenizer_sha256(encoder: Any) -> str | None:
    """SHA-256 of all that makes ids of a text: vocabulary, merges, normaliser, pre-tokeniser, post-processor.

    Without the truncation and padding that calls leave behind in a tokenizer. Of a tokenizer written in Python, its
    class, vocabulary, switches and numbers. None: the encoder shows no tokenizer. It takes up to a second with large
    vocabularies; call it once per run.
    """
    tokenizer: Any = getattr(encoder, "tokenizer", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = json.loads(backend.to_str())
        kept = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    elif hasattr(tokenizer, "get_vocab"):
        given = getattr(tokenizer, "init_kwargs", {}).items()
        settings = {name: value for name, value in given if isinstance(value, bool | int)}  # no paths of a machine
        kept = {"type": type(tokenizer).__name__, "vocab": tokenizer.get_vocab(), "settings": settings}
    else:
        return None
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def vectors_hash(encoder: TextEncoder) -> str:
    """SHA-256 of what decides the vectors of texts: `model_hash`, the tokenizer, and which ids are special tokens."""
    tokenizer = getattr(encoder, "tokenizer", None)
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL}
    parts = [model_hash(encoder), tokenizer_sha256(encoder), special]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
