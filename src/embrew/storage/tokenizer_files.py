"""Tokenizers on disk: written so that any class reopens them with the same tokens, and compared once reopened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from embrew.files.reading import broken, is_content_error, read_json
from embrew.storage.foreign import asks_for_code

GENERIC = "TokenizersBackend"  # reads tokenizer.json unchanged; other classes rebuild parts of it when they are loaded
REBUILD = ("add_bos_token", "add_eos_token")  # would replace the post-processor of tokenizer.json
STATE = (
    "max_length",
    "stride",
    "truncation_strategy",
    "pad_to_multiple_of",
)  # of an earlier call, not of the tokenizer
CODE = "auto_map"  # of the class that it was opened with; the generic one needs no code
OF_THE_CLASS = ("model_input_names", "padding_side", "truncation_side")  # where it sets them, they are not saved
PROBES = (
    "A plain sentence.",
    "  two spaces before,\n\ttwo between  and a tab\t",
    "naïve café; nai\u0308ve ﬁ ½ 今日は 🦆",
    "</s> <s> <|endoftext|> [INST] <unk>",
    "",
)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer as its `tokenizer.json` alone; `check_tokenizer` compares what is reopened.

    Some classes (GPT-NeoX's) rebuild their post-processor, normaliser or pre-tokenizer when they are loaded, from
    incomplete settings. The generic class reads the file unchanged.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key not in (*REBUILD, *STATE, CODE)}
    config |= {"tokenizer_class": GENERIC, **{name: getattr(tokenizer, name) for name in OF_THE_CLASS}}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def open_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Open the tokenizer of a folder that embrew wrote; code is never run for it.

    Raises:
        BrokenFile: its files are missing or broken.
        ValueError: it asks for code of the folder, which no tokenizer written here does.
    """
    read_json(folder / "tokenizer_config.json", keys=("tokenizer_class",))  # without it another one is opened
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        if not asks_for_code(error) and is_content_error(error, also=(OSError,)):
            raise broken(folder, error) from error
        if not asks_for_code(error):
            raise
        raise ValueError(
            f"the tokenizer of {folder} brings its own code, which is not run; a folder that embrew saved has none: "
            "get it again from its source"
        ) from error
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Compare the tokenizer in a folder, reopened, with the one in memory.

    Raises:
        RuntimeError: it gives other tokens, other inputs, or has other special tokens.
    """
    reopened = open_tokenizer(folder)
    what = f"the tokenizer written to {folder.name} is reopened as {type(reopened).__name__} and"
    for text in PROBES:
        ours, theirs = tokenizer(text), reopened(text)
        if ours["input_ids"] != theirs["input_ids"]:
            where = first_difference(ours["input_ids"], theirs["input_ids"], tokenizer)
            raise RuntimeError(f"{what} gives other tokens for {text!r}: {where}")
        if ours.keys() != theirs.keys():
            raise RuntimeError(f"{what} gives {sorted(theirs)}, the one in memory gives {sorted(ours)}")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "padding_side"):
        if getattr(tokenizer, name) != getattr(reopened, name):
            raise RuntimeError(f"{what} has {name}={getattr(reopened, name)}, not {getattr(tokenizer, name)}")


def first_difference(expected: Sequence[int], given: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Describe the first index at which two lists of token ids differ, with the tokens.

    >>> first_difference([5, 7], [5], tokenizer)  # doctest: +SKIP
    'index 1 of 2: expected 7 (▁a), given nothing (1 token)'
    """

    def named(i: int | None) -> str:
        return "nothing" if i is None else f"{i} ({tokenizer.convert_ids_to_tokens(i)})"

    pairs = enumerate(zip_longest(expected, given))
    at, (wanted, found) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
    return f"index {at} of {len(expected)}: expected {named(wanted)}, given {named(found)} ({len(given)} tokens)"
