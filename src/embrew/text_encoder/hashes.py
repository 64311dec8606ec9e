"""SHA-256 of everything that an encoder's vectors depend on: weights, modules, prompts, tokenizer."""

import hashlib
import json
from typing import Any

from embrew.text_encoder.interface import TextEncoder, resolved_prompts

NOT_COMPUTED = {"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}
"""Entries of a model's configuration that its vectors do not depend on; weights tell their dtype."""


def model_hash(encoder: TextEncoder) -> str:
    """Return the encoder's own `weights_hash()`, or the SHA-256 of weights, modules, their settings, and prompts."""
    own = getattr(encoder, "weights_hash", None)
    if callable(own):
        return str(own())
    import torch  # here, so that reading a recipe stays quick

    digest = hashlib.sha256()
    modules = (
        [type(module).__name__ for module in encoder] if hasattr(encoder, "__iter__") else [type(encoder).__name__]
    )
    digest.update(repr((modules, resolved_prompts(encoder), getattr(encoder, "max_seq_length", None))).encode())
    if hasattr(encoder, "__iter__"):
        settings = [_settings(module) for module in encoder]
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    state = encoder.state_dict() if hasattr(encoder, "state_dict") else {}
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def space_of(encoder: Any) -> str | None:
    """Return the hash of the model whose documents an encoder's queries are compared with; None: its own."""
    space: str | None = getattr(getattr(encoder, "settings", None), "space", None)
    return space


def _settings(module: Any) -> dict[str, Any]:
    """Return what a module of Sentence-Transformers computes with, apart from weights, such as its pooling mode."""
    config = getattr(getattr(module, "auto_model", None), "config", None)
    if config is not None:
        return {name: value for name, value in config.to_diff_dict().items() if name not in NOT_COMPUTED}
    return dict(module.get_config_dict()) if hasattr(module, "get_config_dict") else {}


def tokenizer_sha256(encoder: Any) -> str | None:
    """Return the SHA-256 of a tokenizer: vocabulary, merges, normaliser, pre-tokeniser, post-processor.

    Truncation and padding are left out, since calls change them. For a tokenizer written in Python: class, vocabulary,
    and settings that are booleans or integers. None: the encoder has no tokenizer. It takes up to a second with large
    vocabularies; call it once per run. An encoder that was converted from another one has that one's
    (`tokenizer_hash`).
    """
    own = getattr(encoder, "tokenizer_hash", None)
    if own is not None:
        return str(own)
    tokenizer: Any = getattr(encoder, "tokenizer", None)
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        from embrew.identity import tokenizer_hash

        return tokenizer_hash(tokenizer)
    if not hasattr(tokenizer, "get_vocab"):
        return None
    init = getattr(tokenizer, "init_kwargs", {}).items()
    settings = {name: value for name, value in init if isinstance(value, bool | int)}  # no paths
    parts = {"type": type(tokenizer).__name__, "vocab": tokenizer.get_vocab(), "settings": settings}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def vectors_hash(encoder: TextEncoder) -> str:
    """Return the SHA-256 of `model_hash`, the tokenizer and the ids of special tokens."""
    from embrew.identity import combined_hash

    return combined_hash(model_hash(encoder), tokenizer_sha256(encoder), getattr(encoder, "tokenizer", None))
