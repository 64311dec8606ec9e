"""Encoders that are run in llama.cpp: nano, and random models of two layers with the tokenizers of public models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from embrew.encoder import Encoder
from embrew.settings.encoder import Pooling
from tests.conftest import stir

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
SCALED = {  # Llama 3.1's rotary positions, for a model of 64 positions
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, PreTrainedConfig | None]] = {
    "nano": ("", None),
    "llama": ("mistral", LlamaConfig(**SIZES, vocab_size=32768, rope_parameters=SCALED)),
    "llama with biases": ("pythia", LlamaConfig(**SIZES, vocab_size=50304, attention_bias=True, mlp_bias=True)),
    "mistral": ("mistral", MistralConfig(**SIZES, vocab_size=32768, head_dim=16, sliding_window=64)),
    "qwen2": ("qwen2", Qwen2Config(**SIZES, vocab_size=151936, tie_word_embeddings=True)),
    "qwen3": ("qwen2", Qwen3Config(**SIZES, vocab_size=151936, head_dim=32, tie_word_embeddings=True)),
    "gemma3": (
        "mistral",
        Gemma3TextConfig(
            **{**SIZES, "num_hidden_layers": 7},  # the sixth attends to all tokens
            vocab_size=32768,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=64,
        ),
    ),
}
"""Folder of `EMBREW_TOKENIZERS`, and configuration, by name."""
FORMS: dict[str, dict[str, Any]] = {
    "last": {"pooling": "last", "attention": "causal", "template": "{instruction}{text}{eos}"},
    "mean, causal": {"pooling": "mean", "attention": "causal"},
    "mean, bidirectional": {"pooling": "mean", "attention": "bidirectional"},
    "one memory token": {
        "pooling": Pooling("last", "memory"),
        "attention": "causal",
        "memory_tokens": 1,
        "template": "{instruction}{text}{memory}",
    },
    "one memory token, bidirectional": {
        "pooling": Pooling("last", "memory"),
        "attention": "bidirectional",
        "memory_tokens": 1,
        "template": "{instruction}{text}{memory}",
    },
}


def encoder_of(model: str, form: str, folder: Path, **settings: Any) -> Encoder:
    """Return an encoder with a query prompt, a limit of 64 tokens and an adapter that is not zero."""
    tokenizer, config = MODELS[model]
    name: Path | str = model
    if config is not None:
        name = folder / model.replace(" ", "-")
        if not name.exists():
            _random_model(config).save_pretrained(name)
            AutoTokenizer.from_pretrained(Path(os.environ["EMBREW_TOKENIZERS"]) / tokenizer).save_pretrained(name)
    options = {"dtype": "float32", "max_length": 64, "prompts": {"query": "find: ", "document": ""}, **FORMS[form]}
    encoder = Encoder.from_pretrained(name, **{**options, **settings})
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone, 0.1)
    return encoder.eval()


def _random_model(config: PreTrainedConfig) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
            else:
                parameter.normal_(1, 0.1)
    return model
