"""What every runtime's files are written from: an encoder whose tokenizer and weights stand on their own."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from transformers import PreTrainedTokenizerBase

from embrew.cutting import cut
from embrew.encoder import Encoder
from embrew.export.contexts import Baked, bake
from embrew.export.dimensions import nested_dimensions
from embrew.export.fixed import with_fixed_memory, with_instruction, with_one_length
from embrew.export.int8 import Int8
from embrew.export.modules import stock_tokenizer
from embrew.export.parity import Live, context_cases, long_text, parity_cases
from embrew.export.stock import check_text, stock_prompts
from embrew.files.formats import EXPORT
from embrew.runtimes.merged import merged_model, write_rows
from embrew.storage.card import data_names
from embrew.storage.verification import TEXTS, tolerance
from embrew.text.pattern import HOLE


@dataclass(frozen=True)
class Fixed:
    """An encoder in a form that a tokenizer's post-processor and prompts before the text can reproduce.

    Attributes:
        encoder: with one length limit, one number of memory tokens, and the layers and dimensions that are kept.
        live: the encoder as its users call it, which gives the reference vectors.
        lengths: the two length limits of the encoder that is exported.
    """

    encoder: Encoder
    live: Live
    lengths: dict[str, int]

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        *,
        prompt_name: str | None = None,
        max_length: int | None = None,
        num_layers: int | None = None,
        truncate_dim: int | None = None,
    ) -> Fixed:
        """Return the fixed form of an encoder; arguments as in `export_encoder`.

        Raises:
            ValueError: no stock tokenizer can reproduce the encoder's rows; it has two length limits and `max_length`
                is not given; or texts within its limit get different numbers of memory tokens.
        """
        lengths, encoder = dict(encoder.max_length), with_one_length(encoder, max_length)
        made = with_fixed_memory(encoder)
        if _needs_one_prompt(made, prompt_name):
            words: str | None = encoder.instruction(prompt_name or "query")
            made = _with_prompt_in_template(made, prompt_name)
        else:
            words = None
        live = Live(encoder, words, {"num_layers": num_layers, "truncate_dim": truncate_dim})
        made = cut(made, num_layers=num_layers, truncate_dim=truncate_dim)
        check_text(made)
        return cls(made, live, lengths)


@dataclass(frozen=True)
class Parts:
    """An encoder in the form that other software needs.

    Attributes:
        encoder: with one length limit, one number of memory tokens, and the layers and dimensions that are kept.
        lengths: the two length limits of the encoder that is exported.
        tokenizer: its post-processor adds BOS, memory tokens and the template's other tokens.
        ids: id in `tokenizer` of every learned token, by its id in `encoder`.
        model: the transformers model without head, adapter merged; learned tokens, and the vectors of contexts, are
            rows of its embedding matrix.
        baked: contexts by name, as prompts.
        prompts: strings that precede a text, by name, contexts included.
        default_prompt_name: the prompt of a text where none is named.
        parity: content of `parity.json`: reference texts, token ids and vectors.
        empty_texts: whether an empty text has tokens.
        int8: how weights become int8, for runtimes that are given these.
    """

    encoder: Encoder
    lengths: dict[str, int]
    tokenizer: PreTrainedTokenizerBase
    ids: dict[int, int]
    model: Any
    baked: dict[str, Baked]
    prompts: dict[str, str]
    default_prompt_name: str | None
    parity: dict[str, Any]
    empty_texts: bool
    int8: Int8

    @classmethod
    def of(cls, fixed: Fixed, int8: Int8 | None = None) -> Parts:
        """Return the parts of an encoder in its fixed form.

        Raises:
            ValueError: a context leaves no room for a text, or its tokens cannot be reproduced.
        """
        encoder, live, lengths = fixed.encoder, fixed.live, fixed.lengths
        tokenizer, ids = stock_tokenizer(encoder)
        baked = bake(encoder, tokenizer)
        model = merged_model(encoder, ids, len(tokenizer))
        for context in baked.values():
            write_rows(model, context.rows)
        nested = nested_dimensions(encoder)
        if nested:  # vLLM reads these before a request may set dimensions
            model.config.is_matryoshka, model.config.matryoshka_dimensions = True, nested
        prompts = {**stock_prompts(encoder), **{name: context.prompt for name, context in baked.items()}}
        texts = [*TEXTS, long_text(encoder, max(encoder.max_seq_length, *lengths.values()))]
        parity = {
            "format": EXPORT.number,
            "tolerance": tolerance(encoder.backbone.dtype),
            "max_length": encoder.max_seq_length,
            "exported_from": {"max_length": lengths, "data": data_names(encoder.record, steps=encoder.steps)},
            "encoder": encoder.describe(),
            "versions": {name: version(name) for name in ("embrew", "sentence-transformers", "transformers", "torch")},
            "cases": [
                *parity_cases(live, encoder, texts, prompts, ids),
                *context_cases(live, encoder, texts, baked, ids),
            ],
        }
        return cls(
            encoder=encoder,
            lengths=lengths,
            tokenizer=tokenizer,
            ids=ids,
            model=model,
            baked=baked,
            prompts=prompts,
            default_prompt_name=encoder.default_prompt_name or ("text" if "text" in prompts else None),
            parity=parity,
            empty_texts=not any(encoder.template.adds_nothing(words) for words in ("", *encoder.prompts.values())),
            int8=int8 or Int8(),
        )


def _needs_one_prompt(encoder: Encoder, prompt_name: str | None) -> bool:
    """Return whether a prompt has to be written into the template, since prompts follow or surround the text."""
    follows = any("{instruction}" in template.after for template in encoder.templates)
    instructions = [context.context.instruction for context in encoder.contexts.values()]
    needed = follows or any(HOLE in words for words in (*encoder.prompts.values(), *instructions))
    if prompt_name is not None and not needed:
        raise ValueError(
            f"prompt_name={prompt_name!r}: this encoder's prompts come before the text, where stock models have "
            "theirs; all are exported, so leave it out"
        )
    if needed and prompt_name is None and (any(encoder.prompts.values()) or encoder.contexts):
        names = ", ".join(sorted([*encoder.prompts, *encoder.contexts]))
        raise ValueError(
            f"template={encoder.template.pattern!r} has the instruction after the text, or a prompt that continues "
            f"after it ({HOLE}), where stock prompts cannot be; choose the prompt to write into the "
            f"template: prompt_name is one of {names}"
        )
    return needed


def _with_prompt_in_template(encoder: Encoder, prompt_name: str | None) -> Encoder:
    """Return the encoder with one prompt in its template, and no other but a context of that name."""
    made = with_instruction(encoder, prompt_name or "query")
    made.contexts = {name: context for name, context in encoder.contexts.items() if name == prompt_name}
    return made
