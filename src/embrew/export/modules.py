"""The parts of a stock Sentence-Transformers folder: tokenizer, model, pooling modules."""

from __future__ import annotations

import copy
import json
from typing import Any

from tokenizers import processors
from torch import nn
from transformers import PreTrainedTokenizerBase

from embrew.encoder import Encoder
from embrew.export.dimensions import leading_dimensions
from embrew.export.stock import pools_every_token, pools_last_token
from embrew.settings.encoder import MODES


def stock_tokenizer(encoder: Encoder) -> tuple[PreTrainedTokenizerBase, dict[int, int]]:
    """Return a tokenizer whose post-processor adds what the template adds, and the new ids of the memory tokens."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    names = [f"<|memory_{i}|>" for i in range(len(encoder.template.memory_ids))]
    names += [f"<|soft_prompt_{i}|>" for i in range(len(encoder.template.soft_prompt_ids))]
    vocabulary = tokenizer.get_vocab()  # every call makes a new dictionary of all tokens
    taken = [name for name in names if name in vocabulary]
    if taken:
        raise ValueError(f"the tokenizer has a token {taken[0]} already; learned tokens cannot be named so")
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    own = encoder.template.memory_ids + encoder.template.soft_prompt_ids
    added = tokenizer.get_added_vocab()
    ids = dict(zip(own, [added[name] for name in names], strict=True))
    before = [ids.get(i, i) for i in encoder.template.first_ids]
    after = [ids.get(i, i) for i in encoder.template.suffix_ids]
    added_ids = [*before, *after]
    names_by_id = dict(zip(added_ids, tokenizer.convert_ids_to_tokens(added_ids), strict=True))
    tokenizer.backend_tokenizer.post_processor = _template_processing(names_by_id, before, after)
    tokenizer.chat_template = None  # Sentence-Transformers would render every text through it
    tokenizer.split_special_tokens = True  # special tokens in a user's text stay text
    tokenizer.init_kwargs["split_special_tokens"] = True
    tokenizer.model_max_length = encoder.max_seq_length
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer, ids


def _template_processing(names: dict[int, str], before: list[int], after: list[int]) -> processors.TemplateProcessing:
    """Return a post-processor that puts tokens before and after a text, each under its own name.

    Readers of `tokenizer.json` compare these names with those of BOS and EOS (llama.cpp's `SpecialVocab`). It is made
    from its JSON, since the constructor takes no name with a colon or a space.
    """

    def pieces(ids: list[int]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": names[i], "type_id": 0}} for i in ids]

    first: dict[str, Any] = {"Sequence": {"id": "A", "type_id": 0}}
    second: dict[str, Any] = {"Sequence": {"id": "B", "type_id": 1}}
    state = {
        "type": "TemplateProcessing",
        "single": [*pieces(before), first, *pieces(after)],
        "pair": [*pieces(before), first, second, *pieces(after)],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()},
    }
    made = processors.TemplateProcessing()
    made.__setstate__(json.dumps(state).encode())
    return made


def pooling_modules(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, ids: dict[int, int]) -> list[nn.Module]:
    """Return stock modules that pool as the encoder does, and keep its leading dimensions."""
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    width, pooling = encoder.backbone.hidden_size, encoder.pooling
    keep = encoder.get_embedding_dimension()
    if pools_every_token(encoder) or pools_last_token(encoder):
        mode = "lasttoken" if pools_last_token(encoder) else MODES[pooling.mode].stock
        return [Pooling(width, mode), *([leading_dimensions(encoder)] if keep < width else [])]
    size = len(tokenizer)
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(size)))
    vocabulary = [f"<unused_{i}>" if token is None else token for i, token in enumerate(vocabulary)]
    if pooling.over == "memory":
        memory = [ids[i] for i in encoder.template.memory_ids]
        chosen = range(len(memory)) if pooling.slots is None else pooling.slots
        weights, other = {vocabulary[i]: 1.0 for slot, i in enumerate(memory) if slot in chosen}, 0.0
    else:
        added = encoder.template.first_ids + encoder.template.suffix_ids
        weights, other = {vocabulary[ids.get(i, i)]: 0.0 for i in added}, 1.0
    words = WordWeights(vocabulary, weights, unknown_word_weight=other)
    # of tokens, not of their mean: that one is float32, whatever the model's dtype
    shorter = [leading_dimensions(encoder, of="token_embeddings")] if keep < width else []
    return [*shorter, words.requires_grad_(False), Pooling(keep, "mean")]
