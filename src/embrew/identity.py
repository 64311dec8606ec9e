"""What an encoder is made of, as JSON and as a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from embrew.model.adapters import AdapterState, adapter_state
from embrew.model.encoder_module import EncoderModule
from embrew.model.layers import causal_layers
from embrew.model.weights import tensors_under_adapter


def adapters_to_replay(encoder: EncoderModule) -> list[AdapterState]:
    """Return the adapters that a reader merges into the base; none if whole weights are saved, which hold them."""
    return [] if encoder.backbone.owns_weights else list(encoder.merged_adapters)


def active_adapter(encoder: EncoderModule) -> dict[str, Any] | None:
    """Return the PEFT configuration of the adapter that further training continues; None: there is none."""
    config: Mapping[str, Any] | None = None
    if encoder.merged_to_encode and encoder.merged_adapters:
        config = encoder.merged_adapters[-1].config
    elif isinstance(encoder.backbone.model, PeftModel):
        config = adapter_state(encoder.backbone.model).config
    return None if config is None else {key: sorted_names(value) for key, value in config.items()}


def sorted_names(value: Any) -> Any:
    """Return names of modules in one order; other values as they are."""
    return sorted(value) if isinstance(value, list | set | tuple) else value


def settings_of(encoder: EncoderModule) -> dict[str, Any]:
    """Return all settings of an encoder, for JSON: with weights and tokenizer, enough to build it again."""
    cut = {} if encoder.num_layers is None else {"num_layers": encoder.num_layers}
    return {**encoder.settings.as_dict(), **cut}


def describe(encoder: EncoderModule) -> dict[str, Any]:
    """Return base, settings, dtype and size, for result files."""
    owns_weights, inner = encoder.backbone.owns_weights, getattr(encoder.backbone, "inner", None)
    other_layers = [] if encoder.attention.mode == "causal" else causal_layers(inner)  # of a bidirectional hybrid
    return {
        "base": encoder.base.as_dict(),
        **settings_of(encoder),
        "memory_tokens": len(encoder.backbone.memory_ids),
        "soft_prompt_tokens": len(encoder.backbone.soft_prompt_ids),
        "merged_adapters": len(adapters_to_replay(encoder)),
        "adapter": isinstance(encoder.backbone.model, PeftModel),
        **({"full_weights": True} if isinstance(encoder.backbone.model, PeftModel) and owns_weights else {}),
        **({"causal_layers": len(other_layers)} if other_layers else {}),
        "steps": encoder.steps,
        "dtype": str(encoder.backbone.dtype).removeprefix("torch."),
        "dimensions": encoder.get_embedding_dimension(),
        "attn_implementation": encoder.backbone.inner.config._attn_implementation,
    }


def weights_hash(encoder: EncoderModule) -> str:
    """Return sha256 of what decides the vectors: base, settings, memory tokens, adapters, trained weights."""
    digest = hashlib.sha256(json.dumps([encoder.base.as_dict(), settings_of(encoder)], sort_keys=True).encode())
    states = [state.tensors for state in adapters_to_replay(encoder)]
    if encoder.backbone.owns_weights:
        states.append(tensors_under_adapter(encoder.backbone.causal_lm))
    if isinstance(encoder.backbone.model, PeftModel):
        states.append(adapter_state(encoder.backbone.model).tensors)
    if encoder.backbone.learned:
        states.append({name: rows.detach() for name, rows in encoder.backbone.learned.items()})
    states += [part.state_dict() for part in (encoder.head, encoder.center, encoder.demonstrator) if part is not None]
    for tensors in states:
        for name in sorted(tensors):
            digest.update(name.encode())
            digest.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


SPECIAL = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of a fast tokenizer, without truncation and padding, which calls change."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def combined_hash(weights: str, tokenizer_sha256: str | None, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Return the SHA-256 of two hashes and the ids of special tokens."""
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL}
    return hashlib.sha256(json.dumps([weights, tokenizer_sha256, special], sort_keys=True).encode()).hexdigest()


def vectors_hash(encoder: EncoderModule) -> str:
    """Return the SHA-256 of everything that vectors depend on: weights, settings, tokenizer."""
    return combined_hash(weights_hash(encoder), tokenizer_hash(encoder.tokenizer), encoder.tokenizer)


@dataclass(frozen=True)
class CardData:
    """What Sentence-Transformers reads from and writes to a model's card.

    Attributes:
        encoder: the described model.
        eval_results_dict: metrics by the evaluator that computed them, in this process; they are in no saved card.
    """

    encoder: EncoderModule
    eval_results_dict: dict[Any, dict[str, Any]]

    @property
    def base_model(self) -> str:
        """The base's name and the encoder's hash: `mine_hard_negatives` keeps vectors in files by this name."""
        return f"{self.encoder.base.name}@{weights_hash(self.encoder)}"

    def set_evaluation_metrics(self, evaluator: Any, metrics: Mapping[str, Any], epoch: int = 0, step: int = 0) -> None:
        """Keep what an evaluator computed; it calls this itself."""
        self.eval_results_dict[evaluator] = dict(metrics)
