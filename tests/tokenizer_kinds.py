"""Tiny tokenizers of the kinds that public models have, each of its own class, trained in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    CodeGenTokenizer,
    CodeLlamaTokenizer,
    CohereTokenizer,
    GemmaTokenizer,
    GPT2Tokenizer,
    GPTNeoXTokenizer,
    LlamaTokenizer,
    PreTrainedTokenizerBase,
    Qwen2Tokenizer,
    RobertaTokenizer,
)

from tests.conftest import SENTENCES

Parts = tuple[dict[str, int], list[tuple[str, str]]]


@cache
def trained(kind: str, first: tuple[str, ...]) -> Parts:
    """Vocabulary and merges of a BPE of 420, byte-level or with `▁` and bytes as a fallback; `first` come first."""
    built = Tokenizer(models.BPE())
    alphabet: list[str] = []
    if kind == "byte-level":
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = list(pre_tokenizers.ByteLevel.alphabet())
    else:
        built.pre_tokenizer = pre_tokenizers.Metaspace()
        first = (*first, *(f"<0x{i:02X}>" for i in range(256)))
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(first), initial_alphabet=alphabet, show_progress=False
    )
    built.train_from_iterator(SENTENCES * 4, trainer)
    merges = json.loads(built.to_str())["model"]["merges"]
    return built.get_vocab(), [(left, right) for left, right in merges]


def byte_level() -> PreTrainedTokenizerBase:
    """Qwen2's class: byte-level BPE without BOS, padding that is not EOS, padding on the left."""
    vocab, merges = trained("byte-level", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return Qwen2Tokenizer(vocab=vocab, merges=merges, eos_token="<|im_end|>", padding_side="left")


def metaspace() -> PreTrainedTokenizerBase:
    """Llama's class: `▁` for a space, one before the text, bytes as a fallback, BOS, no padding token."""
    vocab, merges = trained("metaspace", ("<unk>", "<s>", "</s>", "[INST]"))
    made = LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True, add_eos_token=False, padding_side="left")
    made.add_special_tokens({"additional_special_tokens": ["[INST]"]})
    return made


def gpt_neox() -> PreTrainedTokenizerBase:
    """GPT-NeoX's class, which rebuilds its post-processor when it is loaded; added tokens of spaces, no BOS."""
    vocab, merges = trained("byte-level", ("<|endoftext|>", "<|padding|>"))
    return with_spaces(GPTNeoXTokenizer(vocab=vocab, merges=merges))


def codegen() -> PreTrainedTokenizerBase:
    """CodeGen's class: a post-processor of its own, added tokens of spaces and tabs, no padding token."""
    vocab, merges = trained("byte-level", ("<|endoftext|>",))
    return with_spaces(CodeGenTokenizer(vocab=vocab, merges=merges, clean_up_tokenization_spaces=True))


def with_spaces(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer with added tokens of two to four spaces, and of two tabs."""
    spaces = [" " * count for count in (4, 3, 2)] + ["\t\t"]
    tokenizer.add_tokens([AddedToken(text, normalized=True, special=False) for text in spaces])
    return tokenizer


KINDS: dict[str, tuple[str, Callable[[], PreTrainedTokenizerBase]]] = {
    "byte-level": ("qwen2", byte_level),
    "metaspace": ("llama", metaspace),
    "gpt-neox": ("gpt-neox", gpt_neox),
    "codegen": ("phi", codegen),
}
"""Model family and tokenizer by kind."""


def made(kind: type[PreTrainedTokenizerBase], **settings: Any) -> PreTrainedTokenizerBase:
    """A tokenizer of some class, with BOS `<s>` and EOS `</s>`."""
    of_bytes = kind in (GPT2Tokenizer, CohereTokenizer, RobertaTokenizer)
    vocab, merges = trained("byte-level" if of_bytes else "metaspace", ("<unk>", "<s>", "</s>", "<pad>", "<mask>"))
    return kind(vocab=vocab, merges=merges, bos_token="<s>", eos_token="</s>", **settings)


CLASSES: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "gpt-neox": gpt_neox,
    "codegen": codegen,
    "qwen2": byte_level,
    "llama": lambda: made(LlamaTokenizer, add_prefix_space=False, add_bos_token=True, add_eos_token=True),
    "code-llama": lambda: made(CodeLlamaTokenizer),
    "gemma": lambda: made(GemmaTokenizer),
    "cohere": lambda: made(CohereTokenizer, add_bos_token=True),
    "gpt2": lambda: made(GPT2Tokenizer, add_prefix_space=True),
    "roberta": lambda: made(RobertaTokenizer),
}
"""Classes that set up a post-processor, normaliser or pre-tokenizer of their own when they are loaded."""
