"""What an encoder is made of, as JSON and as a hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from peft import PeftModel

from embrew.modeling.embedding.embedding_model import EmbeddingModel
from embrew.modeling.model.adapter_state import AdapterState, adapter_state
from embrew.modeling.model.own_weights import tensors_under_adapter


def replayed(encoder: EmbeddingModel) -> list[AdapterState]:
    """Adapters that a reader merges into the base; none where the weights are saved whole, which holds them already."""
    return [] if encoder.backbone.owns_weights else list(encoder.chain)


def settings(encoder: EmbeddingModel) -> dict[str, Any]:
    """What, beside weights and tokenizer, makes this encoder: JSON-able, enough to build it again."""
    patterns = [template.pattern for template in encoder.templates]
    found: dict[str, Any] = {
        "template": patterns[0] if len(patterns) == 1 else patterns,
        "attention": encoder.attention.mode,
        "pooling": encoder.pooling.as_dict(),
        "prompts": dict(encoder.prompts),
        "max_length": dict(encoder.max_length),
        "normalize": encoder.normalize,
    }
    if encoder.template.preparation != "none":
        found["preparation"] = encoder.template.preparation
    if encoder.template.memory_ratio is not None:
        found["memory_ratio"] = encoder.template.memory_ratio
    if encoder.template.words_after != "separate":  # which folders without this key have
        found["words_after"] = encoder.template.words_after
    if encoder.default_prompt_name is not None:
        found["default_prompt_name"] = encoder.default_prompt_name
    if encoder.demonstrator is not None:
        found["demonstrations"] = encoder.demonstrator.settings.as_dict()
    if encoder.num_layers is not None:
        found["num_layers"] = encoder.num_layers
    return found


def describe(encoder: EmbeddingModel) -> dict[str, Any]:
    """Base, settings, dtype and size, for result files."""
    whole = encoder.backbone.owns_weights
    return {
        "base": encoder.base.as_dict(),
        **settings(encoder),
        "memory_tokens": len(encoder.backbone.memory_ids),
        "soft_prompt_tokens": len(encoder.backbone.soft_prompt_ids),
        "merged_adapters": len(replayed(encoder)),
        "adapter": isinstance(encoder.backbone.model, PeftModel),
        **({"full_weights": True} if isinstance(encoder.backbone.model, PeftModel) and whole else {}),
        "steps": encoder.steps,
        "dtype": str(encoder.backbone.dtype).removeprefix("torch."),
        "dimensions": encoder.get_embedding_dimension(),
        "attn_implementation": encoder.backbone.inner.config._attn_implementation,
    }


def weights_hash(encoder: EmbeddingModel) -> str:
    """sha256 of what decides the vectors: base, settings, memory tokens, adapters, trained weights under them."""
    digest = hashlib.sha256(json.dumps([encoder.base.as_dict(), settings(encoder)], sort_keys=True).encode())
    states = [state.tensors for state in replayed(encoder)]
    if encoder.backbone.owns_weights or encoder.backbone.differs_from_noted:
        states.append(tensors_under_adapter(encoder.backbone.causal_lm))
    if isinstance(encoder.backbone.model, PeftModel):
        states.append(adapter_state(encoder.backbone.model).tensors)
    if encoder.backbone.learned:
        states.append({name: rows.detach() for name, rows in encoder.backbone.learned.items()})
    states += [part.state_dict() for part in (encoder.head, encoder.demonstrator) if part is not None]
    for tensors in states:
        for name in sorted(tensors):
            digest.update(name.encode())
            digest.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
