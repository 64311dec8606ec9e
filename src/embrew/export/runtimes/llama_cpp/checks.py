"""Which encoders llama.cpp can run: the reason against the others, and what to train instead."""

from __future__ import annotations

import importlib.util

from embrew.encoder import Encoder
from embrew.export.runtimes.llama_cpp.architecture import refusal
from embrew.export.runtimes.llama_cpp.pre_tokenizer import kind_of
from embrew.export.stock import pools_last_token

INSTEAD = (
    "train one memory token, or last-token pooling, with attention: causal; llama.cpp takes the last token's state, "
    "the first's, or the mean of all"
)
POOLING = {"mean": 1, "cls": 2, "last": 3}  # gguf.PoolingType


def check_llama_cpp(encoder: Encoder) -> None:
    """Raise if llama.cpp cannot give an encoder's vectors, or the gguf package is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError('a GGUF file is written with the gguf package; install it: pip install "embrew[gguf]"')
    reason = (
        _template(encoder)
        or _vectors(encoder)
        or refusal(encoder.backbone.inner.config, encoder.max_seq_length)
        or _tokenizer(encoder)
    )
    if reason:
        raise ValueError(f"this encoder cannot be a GGUF file for llama.cpp: {reason}")


def pooling_type(encoder: Encoder) -> int:
    """Return llama.cpp's number of the encoder's pooling."""
    return POOLING["last"] if pools_last_token(encoder) else POOLING[encoder.pooling.mode]


def _template(encoder: Encoder) -> str | None:
    template = encoder.template
    if template.after:
        return (
            f"template={template.pattern!r} has words after the text, and llama.cpp adds one token there; train with a "
            "template that ends with {text}, {text}{eos} or {text}{memory}"
        )
    if len(template.memory_ids) > 1:
        return f"it has {len(template.memory_ids)} memory tokens, and llama.cpp adds one token after a text; {INSTEAD}"
    if template.soft_prompt_ids:
        return "its soft prompt comes before the text, where llama.cpp adds one token, BOS; train without soft_prompt"
    for ids, place in ((template.first_ids, "before"), (template.suffix_ids, "after")):
        if len(ids) > 1:
            names = " ".join(str(encoder.tokenizer.convert_ids_to_tokens(i)) for i in ids)
            return f"{len(ids)} tokens come {place} every text ({names}), and llama.cpp adds one; {INSTEAD}"
    return None


def _vectors(encoder: Encoder) -> str | None:
    pooling, width = encoder.pooling, encoder.backbone.hidden_size
    if encoder.head is not None:
        return f"its states pass through latent attention before they are pooled; {INSTEAD}"
    if encoder.attention.is_causal is None:
        return f"attention={encoder.attention.mode} needs a mask; llama.cpp is causal or bidirectional: {INSTEAD}"
    if encoder.get_embedding_dimension() < width:
        return (
            f"it keeps {encoder.get_embedding_dimension()} of {width} dimensions, and llama.cpp returns all; export "
            "without --dim, then keep the first dimensions of each vector and normalise it"
        )
    if pools_last_token(encoder):
        return None
    if pooling.mode not in POOLING or (pooling.over != "all" and not _pools_all(encoder)):
        return f"it pools {pooling.mode} over {pooling.over}; {INSTEAD}"
    return None


def _pools_all(encoder: Encoder) -> bool:
    """Return whether the text's positions are all positions."""
    nothing_more = not (encoder.template.first_ids or encoder.template.suffix_ids or any(encoder.prompts.values()))
    return encoder.pooling.over == "text" and nothing_more and not encoder.template.before


def _tokenizer(encoder: Encoder) -> str | None:
    try:
        kind = kind_of(encoder.tokenizer)
    except ValueError as error:
        return str(error)
    if encoder.contexts and kind.model == "llama":
        return "its contexts are tokens in the middle of a prompt, after which llama.cpp's SentencePiece puts a space"
    return None
