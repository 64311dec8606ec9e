"""Provenance of results: model, prompts, settings, versions."""

from pathlib import Path
from typing import Any

from embrew.files.formats import versions
from embrew.text_encoder.hashes import model_hash, tokenizer_sha256
from embrew.text_encoder.interface import TextEncoder, resolved_prompts


def describe_run(encoder: TextEncoder, **settings: Any) -> dict[str, Any]:
    """Return everything but the data that a score depends on: model, hashes, prompts, dtype, versions, settings."""
    describe = getattr(encoder, "describe", None)
    model = describe() if callable(describe) else _describe_sentence_transformer(encoder)
    prompts = model.get("prompts") or dict(encoder.prompts or {})
    return {
        "model": model,
        "model_hash": model_hash(encoder),
        "tokenizer_sha256": tokenizer_sha256(encoder),
        "prompts": prompts,
        "resolved_prompts": resolved_prompts(encoder),
        "template": model.get("template"),
        "dtype": model.get("dtype"),
        "truncate_dim": getattr(encoder, "truncate_dim", None),
        "settings": settings,
        "versions": versions(),
    }


def _describe_sentence_transformer(encoder: Any) -> dict[str, Any]:
    name = getattr(getattr(encoder, "model_card_data", None), "base_model", None)
    if name is None and hasattr(encoder, "__getitem__"):
        config = getattr(getattr(encoder[0], "auto_model", None), "config", None)
        name = getattr(config, "_name_or_path", None)
    parameter = next(encoder.parameters(), None) if hasattr(encoder, "parameters") else None
    return {
        "type": type(encoder).__name__,
        "name": Path(name).name if name and Path(name).is_absolute() else name,  # no path of one machine
        "modules": [type(module).__name__ for module in encoder] if hasattr(encoder, "__iter__") else [],
        "prompts": dict(encoder.prompts or {}),
        "default_prompt_name": getattr(encoder, "default_prompt_name", None),
        "max_length": getattr(encoder, "max_seq_length", None),
        "truncate_dim": getattr(encoder, "truncate_dim", None),
        "dtype": None if parameter is None else str(parameter.dtype).removeprefix("torch."),
    }
