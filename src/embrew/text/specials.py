"""Special tokens that a tokenizer puts around every text by itself."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase


def first_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what comes before every text: BOS, or CLS; nothing (Qwen, GPT-NeoX, Phi)."""
    first = list(tokenizer("a").input_ids)[:1]
    begins = first and first[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id)
    return first if begins else []


def last_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the SEP of BERT-type tokenizers, which have a CLS too; nothing for those of causal LMs."""
    sep, last = tokenizer.sep_token_id, list(tokenizer("a").input_ids)[-1:]
    is_bert = tokenizer.cls_token_id is not None and sep is not None and last == [sep]
    return last if is_bert else []
