"""Refuse a tokenizer whose vocabulary was not found."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase


def check_vocabulary(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise where a tokenizer has no vocabulary: transformers opens a folder without its files as an empty one.

    Raises:
        ValueError: two different sentences get the same tokens, or none.
    """
    one, other = tokenizer(["A plain sentence.", "another 1"], add_special_tokens=False, verbose=False)["input_ids"]
    if not one or one == other:
        raise ValueError(
            f"{type(tokenizer).__name__} of {tokenizer.name_or_path or 'this model'} has {len(tokenizer)} tokens and "
            "gives different texts the same ones: its vocabulary was not found; the folder needs tokenizer.json, or "
            "the vocabulary files of its kind (vocab.json and merges.txt, vocab.txt, tokenizer.model)"
        )
