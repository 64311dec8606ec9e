"""Which of llama.cpp's tokenizers gives the same tokens as a `tokenizer.json`, chosen from its definition.

llama.cpp (`src/llama-vocab.cpp`, commit 0c1e570) has a list of pre-tokenizers by name, `tokenizer.ggml.pre`, for
byte-level BPE (`gpt2`), and one tokenizer for SentencePiece vocabularies (`llama`). It normalises nothing.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

_REST = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN2 = _SHORT + _REST % ""
LLAMA3 = _SHORT + _REST % "{1,3}"
BY_DIGITS = {("type", "Digits"), ("individual_digits", True)}
NAMES = {
    (QWEN2, False): "qwen2",
    (LLAMA3, True): "llama-bpe",
    (LLAMA3, False): "dbrx",  # the same expression, without ignore_merges
    ("words", False): "gpt-2",
    ("digits, words", False): "refact",  # as starcoder and smollm; this name is in Ollama's list too
}
"""Name of a pre-tokenizer by its expressions and `ignore_merges`."""
SPACE = "▁"
PREFIXED = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ],
}
NFC, NO_FIRST_SPACE = "nfc", "without one leading space"


@dataclass(frozen=True)
class Kind:
    """A tokenizer as llama.cpp has it.

    Attributes:
        model: `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
        pre: `tokenizer.ggml.pre`.
        space_prefix: whether a space is put before every text.
        preparation: what has to be done to a prompt with its text first, since llama.cpp does not; see `prepared`.
    """

    model: str
    pre: str
    space_prefix: bool = False
    preparation: tuple[str, ...] = ()


def kind_of(tokenizer: PreTrainedTokenizerBase) -> Kind:
    """Return llama.cpp's form of a tokenizer.

    Raises:
        ValueError: it has none, or none that is known to give the same tokens; the reason is in the message.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    model, pre = backend["model"], _steps(backend["pre_tokenizer"])
    if model["type"] != "BPE" or model.get("dropout"):
        raise ValueError(f"its tokenizer is a {model['type']} model, and llama.cpp's BPE alone can be written")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise ValueError("its tokenizer marks the parts of a word, which llama.cpp does not")
    kind = _sentencepiece(backend, pre) if model.get("byte_fallback") else _byte_level(backend, pre)
    _check_added(backend["added_tokens"], kind)
    return kind


def prepared(text: str, steps: tuple[str, ...] | list[str]) -> str:
    """Return a prompt with its text as llama.cpp has to be given it: `Kind.preparation`."""
    if NFC in steps:
        text = unicodedata.normalize("NFC", text)
    if NO_FIRST_SPACE in steps and text.startswith((" ", SPACE)):
        text = text[1:]
    return text


def _byte_level(backend: dict[str, Any], pre: list[dict[str, Any]]) -> Kind:
    normalizer = backend["normalizer"]
    if normalizer not in (None, {"type": "NFC"}):
        raise ValueError(f"its tokenizer normalises texts by {_brief(normalizer)}, which llama.cpp does not")
    name = NAMES.get((_expression(pre), bool(backend["model"].get("ignore_merges"))))
    if name is None:
        raise ValueError(
            f"its tokenizer's pre-tokenizer {_brief(backend['pre_tokenizer'])} is not known to be one of llama.cpp's; "
            f"known are those of {', '.join(NAMES.values())}"
        )
    return Kind("gpt2", name, preparation=() if normalizer is None else (NFC,))


def _expression(pre: list[dict[str, Any]]) -> str:
    """Return how a pre-tokenizer splits texts into words; empty: in another way."""
    *before, last = pre or [{}]
    byte_level = last.get("type") == "ByteLevel" and not last["add_prefix_space"]
    if byte_level and last["use_regex"]:
        if not before:
            return "words"
        return "digits, words" if len(before) == 1 and set(before[0].items()) == BY_DIGITS else ""
    if byte_level and len(before) == 1 and before[0]["type"] == "Split":
        split = before[0]
        plain = split["behavior"] == "Isolated" and not split["invert"]
        return str(split["pattern"].get("Regex", "")) if plain else ""
    return ""


def _sentencepiece(backend: dict[str, Any], pre: list[dict[str, Any]]) -> Kind:
    normalizer = backend["normalizer"]
    if normalizer == PREFIXED and not pre:
        return Kind("llama", "default", space_prefix=True)
    metaspace = pre[0] if len(pre) == 1 and pre[0]["type"] == "Metaspace" else None
    if normalizer is not None or metaspace is None or metaspace["replacement"] != SPACE or metaspace["split"]:
        raise ValueError(
            f"its tokenizer's normaliser {_brief(normalizer)} with pre-tokenizer {_brief(backend['pre_tokenizer'])} "
            "is not SentencePiece's space before a text, which is what llama.cpp has"
        )
    if metaspace["prepend_scheme"] == "never":
        return Kind("llama", "default")
    return Kind("llama", "default", space_prefix=True, preparation=(NO_FIRST_SPACE,))


def _check_added(added: list[dict[str, Any]], kind: Kind) -> None:
    """Raise if added tokens that are found in texts are found otherwise in llama.cpp."""
    for token in added:
        if token["special"]:
            continue  # stays text, here as in the encoder
        if kind.model == "llama":
            raise ValueError(
                f"its tokenizer has the added token {token['content']!r}; after such a token llama.cpp puts a space "
                "before the text again"
            )
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise ValueError(f"its added token {token['content']!r} depends on what surrounds it; llama.cpp's do not")


def _steps(pre: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre is None:
        return []
    return [step for part in pre["pretokenizers"] for step in _steps(part)] if pre["type"] == "Sequence" else [pre]


def _brief(definition: Any) -> str:
    text = json.dumps(definition, ensure_ascii=False)
    return text if len(text) <= 300 else text[:300] + "…"
