"""A tokenizer that adds what a template adds, and prompts that precede a text: what every runtime reads texts with."""

from __future__ import annotations

import copy
import json

from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from embrew.encoder import Encoder

Piece = dict[str, dict[str, str | int]]  # of a template in `tokenizer.json`: a token or a text, with its type id
MODEL_CODE = "transformers_modules."  # where transformers puts code that came with a model


def check_text(encoder: Encoder) -> None:
    """Raise if a tokenizer with a post-processor, and prompts that precede the text, cannot reproduce its rows."""
    reason, model = None, encoder.backbone.causal_lm
    template, limit = encoder.template, encoder.max_seq_length
    positions = getattr(encoder.backbone.inner.config, "max_position_embeddings", limit)
    if limit > positions:
        reason = (
            f"its max_length is {limit}, and stock tokenizers truncate at the {positions} positions of the model's "
            "config"
        )
    elif type(model).__module__.startswith(MODEL_CODE) or type(model.config).__module__.startswith(MODEL_CODE):
        reason = f"its language model needs custom code ({type(model).__name__}), which stock folders do not run"
    elif len(encoder.templates) > 1:
        reason = f"it takes the mean over {len(encoder.templates)} templates, and a stock folder has one"
    elif template.between is not None:
        reason = f"template={template.pattern!r} repeats the text, which stock modules do not"
    elif template.after and template.words_after == "joined":
        reason = (
            f"template={template.pattern!r} is one string with the text, tokenised once, and stock tokenizers add what "
            "follows a text on their own; an encoder made, and trained, with words_after: separate can be exported"
        )
    elif template.preparation != "none":
        reason = f"preparation={template.preparation} changes the text first, which stock modules do not"
    elif encoder.pooling.over == "text" and (
        template.after or encoder.contexts or any(stock_prompts(encoder).values())
    ):
        reason = (
            f"mean over text leaves out the words of template {template.pattern!r}, which stock pooling cannot tell "
            "from the text; pool over all, or over memory tokens"
        )
    if reason:
        raise ValueError(f"this encoder cannot be exported: {reason}")


def stock_prompts(encoder: Encoder) -> dict[str, str]:
    """Return the template's words before the text with each prompt filled in, as Sentence-Transformers needs them."""
    prompts = {name: encoder.template.before.replace("{instruction}", text) for name, text in encoder.prompts.items()}
    bare = encoder.template.before.replace("{instruction}", "")
    return {**prompts, "text": bare} if bare else prompts


def stock_tokenizer(encoder: Encoder) -> tuple[PreTrainedTokenizerBase, dict[int, int]]:
    """Return a tokenizer whose post-processor adds what the template adds, and the new ids of the memory tokens."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    names = [f"<|memory_{i}|>" for i in range(len(encoder.template.memory_ids))]
    names += [f"<|soft_prompt_{i}|>" for i in range(len(encoder.template.soft_prompt_ids))]
    vocabulary = tokenizer.get_vocab()  # every call makes a new dictionary of all tokens
    in_use = [name for name in names if name in vocabulary]
    if in_use:
        raise ValueError(f"the tokenizer has a token {in_use[0]} already; learned tokens cannot be named so")
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    learned = encoder.template.memory_ids + encoder.template.soft_prompt_ids
    added = tokenizer.get_added_vocab()
    ids = dict(zip(learned, [added[name] for name in names], strict=True))
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

    def pieces(ids: list[int]) -> list[Piece]:
        return [{"SpecialToken": {"id": names[i], "type_id": 0}} for i in ids]

    first: Piece = {"Sequence": {"id": "A", "type_id": 0}}
    second: Piece = {"Sequence": {"id": "B", "type_id": 1}}
    state = {
        "type": "TemplateProcessing",
        "single": [*pieces(before), first, *pieces(after)],
        "pair": [*pieces(before), first, second, *pieces(after)],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()},
    }
    processor = processors.TemplateProcessing()
    processor.__setstate__(json.dumps(state).encode())
    return processor
