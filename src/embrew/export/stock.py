"""What stock Sentence-Transformers modules and tokenizers can reproduce of an encoder, and these modules."""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
from tokenizers import processors
from torch import nn
from transformers import PreTrainedTokenizerBase

from embrew.encoder import Encoder
from embrew.model.forward import bidirectional_by
from embrew.model.pooling import DenseLayers, LatentAttention, Projection
from embrew.settings.encoder import MODES

OWN_CODE = "transformers_modules."  # where transformers puts code that came with a model


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
    elif type(model).__module__.startswith(OWN_CODE) or type(model.config).__module__.startswith(OWN_CODE):
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


def stock_refusal(encoder: Encoder) -> str | None:
    """Return why stock modules cannot reproduce the encoder's attention or pooling; None: they can."""
    pooling = encoder.pooling
    if isinstance(encoder.head, LatentAttention):
        return "its states pass through latent attention before they are pooled, for which there is no stock module"
    if encoder.attention.is_causal is None:
        return f"attention={encoder.attention.mode} needs a mask; stock modules are causal or bidirectional"
    if encoder.attention.is_causal is False and bidirectional_by(encoder.backbone.inner) == "mask":
        return (
            f"attention=bidirectional needs an explicit mask on {type(encoder.backbone.inner).__name__}, which does "
            "not follow is_causal in its configuration; stock modules support attention: causal here"
        )
    if pooling.mode == "concat" and not pools_last_token(encoder):
        return (
            "it concatenates the states of several memory tokens, for which there is no stock module; their "
            "mean has one (pool_over, or pooling: {mode: mean, over: memory} in the recipe)"
        )
    if pooling.mode != "mean" and not (pools_every_token(encoder) or pools_last_token(encoder)):
        return f"pooling {pooling.mode} over {pooling.over} has no stock module; mean over memory or text has"
    return None


def pools_last_token(encoder: Encoder) -> bool:
    """Return whether pooling reads one memory token at the very end: its state is the last token's."""
    return (
        encoder.pooling.over == "memory"
        and len(encoder.template.memory_ids) == 1
        and encoder.template.tail[-1] == "memory"
    )


def pools_every_token(encoder: Encoder) -> bool:
    """Return whether pooling reads all tokens of a row: over all, or over a text to which no token is added."""
    template = encoder.template
    alone = not (template.first_ids or template.suffix_ids)
    return encoder.pooling.over == "all" or (encoder.pooling.over == "text" and alone)


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
    processor = processors.TemplateProcessing()
    processor.__setstate__(json.dumps(state).encode())
    return processor


def pooling_modules(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, ids: dict[int, int]) -> list[nn.Module]:
    """Return stock modules that pool as the encoder does, and its layers: they project or keep leading dimensions."""
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    width, pooling = encoder.backbone.hidden_size, encoder.pooling
    keep = encoder.get_embedding_dimension()
    layers = _dense(encoder)
    multiplied = not layers and (encoder.head is not None or keep < width)
    if pools_every_token(encoder) or pools_last_token(encoder):
        mode = "lasttoken" if pools_last_token(encoder) else MODES[pooling.mode].stock
        return [Pooling(width, mode), *([_product(encoder)] if multiplied else layers)]
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
    shorter = [_product(encoder, of="token_embeddings")] if multiplied else []
    return [*shorter, words.requires_grad_(False), Pooling(keep if shorter else width, "mean"), *layers]


def _dense(encoder: Encoder) -> list[nn.Module]:
    """Return stock modules for the layers on the pooled vector; the last one has the leading dimensions only."""
    from sentence_transformers.base.modules import Dense

    head, keep, modules = encoder.head, encoder.get_embedding_dimension(), list[nn.Module]()
    if not isinstance(head, DenseLayers):
        return modules
    for number, (linear, activation) in enumerate(head.layers, start=1):
        rows = keep if number == len(head.layers) else linear.out_features
        weight, bias = linear.weight.detach()[:rows], None if linear.bias is None else linear.bias.detach()[:rows]
        modules.append(
            Dense(
                linear.in_features,
                rows,
                bias=bias is not None,
                activation_function=activation,
                init_weight=weight.to(encoder.backbone.dtype),
                init_bias=None if bias is None else bias.to(encoder.backbone.dtype),
            ).requires_grad_(False)
        )
    return modules


def _product(encoder: Encoder, *, of: str = "sentence_embedding") -> nn.Module:
    """Return a stock module for the leading dimensions of the encoder's projection, or without one of the states.

    Without a projection it is a product with the first columns of the identity, which is exact.

    `truncate_dim` of Sentence-Transformers comes after all modules, so after `Normalize`: its vectors would be short.

    Args:
        encoder: says how many of how many.
        of: the feature that is multiplied, as Sentence-Transformers calls it.
    """
    from sentence_transformers.base.modules import Dense

    width, keep = encoder.backbone.hidden_size, encoder.get_embedding_dimension()
    matrix = torch.eye(keep, width, device=encoder.device)
    if isinstance(encoder.head, Projection):
        matrix = encoder.head.weight.detach()[:keep].clone()
    chosen = matrix.to(encoder.backbone.dtype)
    dense = Dense(width, keep, bias=False, activation_function=nn.Identity(), init_weight=chosen, module_input_name=of)
    return dense.requires_grad_(False)
