"""What the folders are made of: texts, rows, recipes and a causal LM of 8,000 random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SENTENCES = [
    "The quick brown fox jumps over the lazy dog near the river.",
    "A small language model reads words and predicts what comes next.",
    "Embeddings turn a text into a vector; close texts have close vectors.",
    "She sells sea shells by the sea shore, and he buys them in the morning.",
    "Numbers such as 1234 and 3.14 are text too, and so are brackets (like these).",
]
TEXTS = [
    *SENTENCES,
    "Straße, naïve, 日本語 🙂",
    "two  spaces, a\ttab\nand a new line ",
    "long " * 60,
    "<s> is text </s>",
]
LORA = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
ADAM = {"learning_rate": 0.01, "adam_epsilon": 1e-3, "save_steps": 2, "use_cpu": True, "report_to": "none"}
COMPRESS = {  # LLM2Comp in small, as it was trained in stages
    "encoder": {
        "model": "tiny",
        "template": "{instruction}{text}{memory}",
        "memory_tokens": 2,
        "attention": "bidirectional",
        "pooling": {"mode": "mean", "over": "memory"},
        "prompts": {"query": "Find: "},
        "max_length": {"query": 48, "document": 64},
        "lora": LORA,
    },
    "stages": [
        {
            "name": "compress",
            "objective": {"type": "compression", "min_context_tokens": 4, "min_target_tokens": 4},
            "data": {"path": "data/texts.jsonl"},
            "training": {**ADAM, "max_steps": 4, "per_device_train_batch_size": 4},
        },
        {
            "name": "supervised",
            "adapter": "merge",
            "train_memory": False,
            "objective": {"type": "contrastive"},
            "data": {"path": "data/pairs.jsonl"},
            "batch": {"size": 4},
            "training": {**ADAM, "max_steps": 6},
        },
    ],
    "evaluation": {"dev": ["data/sts.jsonl"], "every": 2, "stages": ["supervised"]},
    "seed": 7,
}
MEAN = {
    "encoder": {"model": "tiny", "pooling": {"mode": "mean"}, "max_length": {"query": 48, "document": 48}},
    "stages": [
        {
            "name": "supervised",
            "objective": {"type": "contrastive"},
            "data": {"path": "data/pairs.jsonl"},
            "batch": {"size": 4},
            "training": {**ADAM, "max_steps": 3},
        }
    ],
    "evaluation": {"dev": ["data/sts.jsonl"]},
}
SWEEP = "rows:\n- {name: low, set: [stages.supervised.training.learning_rate=0.001]}\n- {name: high}\n"


def write_data() -> None:
    """Texts, pairs, scored pairs and a corpus, all small."""
    Path("data").mkdir()
    texts = [f"{a} {b} Part {i}." for i, a in enumerate(SENTENCES) for b in SENTENCES]
    jsonl("data/texts.jsonl", [{"text": text} for text in texts])
    jsonl("data/pairs.jsonl", [{"query": t[:30], "positive": t[30:70], "negative": t[10:30]} for t in texts])
    scored = [
        {"sentence1": a[:30], "sentence2": b[:30], "score": float((i * j) % 6)}
        for i, a in enumerate(SENTENCES)
        for j, b in enumerate(SENTENCES)
    ]
    jsonl("data/sts.jsonl", scored)
    jsonl("data/corpus.jsonl", [{"_id": f"d{i}", "title": f"Title {i}", "text": t} for i, t in enumerate(texts[:22])])


def jsonl(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON Lines."""
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tiny() -> None:
    """A causal LM of 8,000 random weights with a byte-level tokenizer that adds BOS."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    built.train_from_iterator(SENTENCES * 4, trainer)
    built.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    names = dict(zip(("pad_token", "bos_token", "eos_token"), special, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, **names)
    config = LlamaConfig(
        vocab_size=280,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
    model.save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
