"""Generate text from a text: from its memory tokens alone, as a bottleneck is trained, or from all its tokens."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig

from embrew.model.attention import first_prompt
from embrew.model.batching import plan_batches
from embrew.model.encoder_module import EncoderModule
from embrew.model.prefix import cache_name
from embrew.progress import progress
from embrew.text.texts import Text
from embrew.text.tokens import Segment, Tokens

Source = Literal["memory", "text"]
Bos = Literal["visible", "strict"]
SOURCES: tuple[Source, ...] = ("memory", "text")
RESERVED = (  # options of `generate` in transformers that would undo what is done here
    "inputs", "input_ids", "inputs_embeds", "attention_mask", "position_ids", "past_key_values", "use_cache",
    "cache_implementation", "cache_config", "generation_config", "max_length", "min_length", "assistant_model",
    "prompt_lookup_num_tokens", "custom_generate", "streamer", "return_dict_in_generate", "prefill_chunk_size",
)  # fmt: skip
DEFAULT_NEW_TOKENS = 128  # most new tokens, by default


def generate(
    encoder: EncoderModule,
    texts: Sequence[Text],
    *,
    instruction: str,
    source: Source = "memory",
    bos: Bos = "visible",
    max_tokens: int,
    batch_size: int = 16,
    show_progress_bar: bool = False,
    **options: Any,
) -> list[str]:
    """Return what the model writes after each text; see `Encoder.generate`.

    Two forward passes: text and memory are read once; then all keys and values but the memory's (and BOS') are dropped,
    and the target is written at the positions after them. *Learn Before Represent*, Eq. 2: p(y_t | Z, y_<t).
    """
    check_can_generate(encoder, source)
    _check_options(options)
    rows = encoder.template.rows(texts, instruction=instruction, max_length=max_tokens)
    settings = _settings(encoder, options)
    copies = settings.num_return_sequences or 1
    written = [""] * (len(rows) * copies)
    with torch.inference_mode(), progress(len(rows), "generate", "text", show=show_progress_bar) as bar:
        for group in plan_batches([len(row.ids) for row in rows], batch_size=batch_size):
            tokens = Tokens.pad([rows[i] for i in group]).to(encoder.device)
            answers = _continue(encoder, tokens, source, bos, settings)
            for index, i in enumerate(group):
                written[i * copies : (i + 1) * copies] = answers[index * copies : (index + 1) * copies]
            bar.update(len(group))
    return written


def has_bottleneck(encoder: EncoderModule) -> bool:
    """Return whether targets can be written from the memory tokens alone."""
    return encoder.backbone.memory is not None and encoder.template.tail[-1:] == ["memory"]


def check_can_generate(encoder: EncoderModule, source: Source) -> None:
    """Raise where an encoder cannot write from this.

    Raises:
        ValueError: no causal LM, no causal attention, several templates, or no memory right before the target.
    """
    if source not in SOURCES:
        raise ValueError(f"source={source!r}; choose from {', '.join(SOURCES)}")
    encoder.backbone.check_decoder("writing")
    if not encoder.attention.is_causal:
        raise ValueError(
            f"attention={encoder.attention.mode}: a bidirectional model does not generate; use an encoder with "
            "causal attention (an earlier stage of this one, if it was trained so)"
        )
    if len(encoder.templates) > 1:
        raise ValueError(f"the encoder has {len(encoder.templates)} templates; generation needs one")
    if source == "memory" and not has_bottleneck(encoder):
        raise ValueError(
            f"template={encoder.template.pattern!r} has no bottleneck: {{memory}} is not its end; give source='text' "
            "to generate from the visible text"
        )


def _check_options(options: dict[str, Any]) -> None:
    for key in options:
        if key in RESERVED:
            hint = "; give max_new_tokens" if key.endswith("length") else ""
            raise ValueError(f"{key} is not allowed here: the encoder reads the texts and keeps the cache{hint}")


def _settings(encoder: EncoderModule, options: dict[str, Any]) -> GenerationConfig:
    """Return generation settings: greedy unless `options` differ; the model's own sampling settings are ignored."""
    config, tokenizer = encoder.backbone.causal_lm.generation_config, encoder.tokenizer
    eos = tokenizer.eos_token_id if config is None or config.eos_token_id is None else config.eos_token_id
    first = eos[0] if isinstance(eos, list) else eos
    pad = next((i for i in (tokenizer.pad_token_id, first, 0) if i is not None), 0)
    defaults = {"max_new_tokens": DEFAULT_NEW_TOKENS, "do_sample": False, "eos_token_id": eos, "pad_token_id": pad}
    return GenerationConfig(**{**defaults, **options})


def _continue(
    encoder: EncoderModule, tokens: Tokens, source: Source, bos: Bos, settings: GenerationConfig
) -> list[str]:
    """Return what is written after each row of a batch."""
    inner = encoder.backbone.inner
    window = getattr(inner.config, "sliding_window", None)
    longest = tokens.input_ids.shape[1] + (settings.max_new_tokens or DEFAULT_NEW_TOKENS)
    if source == "memory" and window is not None and longest > window:
        raise ValueError(
            f"a text of {tokens.input_ids.shape[1]} tokens and {settings.max_new_tokens} new ones exceed the model's "
            f"attention window of {window}; lower the length limit of texts, or max_new_tokens"
        )
    visible = None
    if source == "memory":
        visible = tokens.where(Segment.MEMORY)
        if bos == "visible":
            visible = visible | first_prompt(tokens)
    real = tokens.attention_mask
    order = torch.argsort(real, dim=1, stable=True)  # padding first: what is written follows the last token
    embedded = encoder.backbone.embed(tokens)
    left = embedded.gather(1, order[..., None].expand_as(embedded))
    model = copy.copy(encoder.backbone.causal_lm)  # separate hooks, the same weights
    model._forward_hooks, model._forward_pre_hooks = OrderedDict(), OrderedDict()
    model._forward_pre_hooks_with_kwargs, model._forward_hooks_with_kwargs = OrderedDict(), OrderedDict()
    cache = DynamicCache()  # without windows: all layers keep the same positions
    if visible is not None:
        cache_filter = _CacheFilter(visible.gather(1, order))
        model.register_forward_pre_hook(cache_filter.before, with_kwargs=True)
        model.register_forward_hook(cache_filter.after)
    written = model.generate(
        inputs_embeds=left,
        attention_mask=real.gather(1, order),
        generation_config=settings,
        **{cache_name(model): cache},
    )
    return [str(text) for text in encoder.tokenizer.batch_decode(written, skip_special_tokens=True)]


class _CacheFilter:
    """Hooks on a generating model: once the texts are read, the cache keeps only the positions that may be seen.

    Positions are counted as if nothing had been dropped.
    """

    def __init__(self, visible: Tensor) -> None:
        width = int(visible.sum(1).max())
        self.positions = torch.argsort(visible.long(), dim=1, stable=True)[:, visible.shape[1] - width :]
        self.seen = visible.gather(1, self.positions).long()
        self.has_read = False

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Set the mask of what is left and of what was written, from the second forward pass on."""
        if self.has_read:
            cache, ids = kwargs[cache_name(module)], kwargs["input_ids"]
            width = cache.get_seq_length() + ids.shape[1] - self.seen.shape[1]
            seen = self.seen.repeat_interleave(len(ids) // len(self.seen), 0)
            kwargs["attention_mask"] = torch.cat([seen, seen.new_ones(len(ids), width)], dim=1)
        return args, kwargs

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Drop the other positions after the first forward pass."""
        if self.has_read:
            return
        self.has_read = True
        for layer in output[cache_name(module)].layers:
            positions = self.positions.repeat_interleave(len(layer.keys) // len(self.positions), 0)
            index = positions[:, None, :, None].expand(-1, layer.keys.shape[1], -1, -1)
            layer.keys = layer.keys.gather(2, index.expand(-1, -1, -1, layer.keys.shape[3]))
            layer.values = layer.values.gather(2, index.expand(-1, -1, -1, layer.values.shape[3]))
