"""Which encoders stock Sentence-Transformers modules can reproduce."""

from __future__ import annotations

from embrew.encoder import Encoder
from embrew.model.forward import bidirectional_by

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


def check_stock(encoder: Encoder) -> None:
    """Raise if stock Sentence-Transformers modules cannot reproduce the encoder's attention or pooling."""
    reason, pooling = None, encoder.pooling
    if encoder.head is not None:
        reason = "its states pass through latent attention before they are pooled, for which there is no stock module"
    elif encoder.attention.is_causal is None:
        reason = f"attention={encoder.attention.mode} needs a mask; stock modules are causal or bidirectional"
    elif encoder.attention.is_causal is False and bidirectional_by(encoder.backbone.inner) != "flag":
        reason = (
            f"attention=bidirectional needs an explicit mask on {type(encoder.backbone.inner).__name__}, which does "
            "not follow is_causal in its configuration; stock modules support attention: causal here"
        )
    elif pooling.mode == "concat" and not pools_last_token(encoder):
        reason = (
            "it concatenates the states of several memory tokens, for which there is no stock module; their "
            "mean has one (pool_over, or pooling: {mode: mean, over: memory} in the recipe)"
        )
    elif pooling.mode != "mean" and not (pools_every_token(encoder) or pools_last_token(encoder)):
        reason = f"pooling {pooling.mode} over {pooling.over} has no stock module; mean over memory or text has"
    if reason:
        raise ValueError(f"this encoder cannot be a stock Sentence-Transformers folder: {reason}")


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
