"""How large the drill's models and batches are: on a GPU, and on the pretended device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gpu
from transformers import MistralConfig, PreTrainedConfig, Qwen3Config

QWEN3 = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
MISTRAL = {
    "vocab_size": 32_768,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
TINY = {
    "hidden_size": 64,  # the least that can be quantised to 4 bits
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "vocab_size": 8192,  # nano's tokenizer fits
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of what is measured.

    Attributes:
        shapes: settings of the language models, by name.
        dtype: of their weights.
        warm_up, timed, profiled, last: optimiser steps of a training: unmeasured, timed, profiled, and further ones.
        rows: training rows; words: of a text; long_words: of a text that is compressed or generated.
        batch: overrides of a recipe's batch sizes.
        lengths: of texts to encode; batch_tokens: per batch; batches: per length.
        peer_lengths, peer_texts: texts that are encoded beside a peer.
        row: tokens of the bottleneck's row; prompt, text, texts: of the prefix.
        layers, targets, width, compressed: of ESE's targets: layers, texts, width, components.
        chunk, vocabulary, hidden: of a loss over the vocabulary.
        rounds: of pairs.
    """

    shapes: dict[str, dict[str, Any]] = field(default_factory=lambda: {"0.6b": QWEN3, "7b": MISTRAL})
    dtype: str = "bfloat16"
    warm_up: int = 10
    timed: int = 10
    profiled: int = 4
    last: int = 6
    rows: int = 1024
    words: int = 60
    long_words: int = 400
    batch: dict[str, int] = field(default_factory=dict)
    lengths: tuple[int, ...] = (32, 128, 512, 2048)
    batch_tokens: int = 16_384
    batches: dict[str, int] = field(default_factory=lambda: {"0.6b": 32, "7b": 8})
    peer_lengths: tuple[int, ...] = (50, 512)
    peer_texts: tuple[int, ...] = (8_192, 1_024)
    row: int = 2048
    prompt: int = 256
    text: int = 32
    texts: int = 512
    layers: int = 28
    targets: int = 128
    width: int = 1024
    compressed: int = 128
    chunk: int = 512
    vocabulary: int = 151_936
    hidden: int = 1024
    rounds: int = 10

    def config(self, shape: str) -> PreTrainedConfig:
        """Return the configuration of a language model."""
        kind = Qwen3Config if shape == "0.6b" else MistralConfig
        return kind(**self.shapes[shape])


REAL = Sizes()
PRETENDED = Sizes(
    shapes={"0.6b": {**TINY, "tie_word_embeddings": True}, "7b": {**TINY, "tie_word_embeddings": False}},
    dtype="float32",
    warm_up=1,
    timed=2,
    profiled=1,
    last=4,
    rows=32,
    words=8,
    long_words=16,
    batch={"batch": 8, "micro": 4},
    lengths=(8, 16, 512),
    batch_tokens=1024,
    batches={"0.6b": 1, "7b": 1},
    peer_texts=(4, 2),
    row=64,
    texts=4,
    layers=2,
    targets=16,
    width=32,
    compressed=4,
    chunk=8,
    vocabulary=300,
    hidden=16,
    rounds=2,
)


def now() -> Sizes:
    """Return the sizes for the device in use."""
    return REAL if gpu.DEVICE == "cuda" else PRETENDED
