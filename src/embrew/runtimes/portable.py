"""What the files of all runtimes are written from: an encoder whose tokenizer and weights need no code of embrew."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from embrew.cutting import cut
from embrew.encoder import Encoder
from embrew.files.formats import EXPORT
from embrew.runtimes.context_prompts import ContextPrompt, context_prompt
from embrew.runtimes.graph import SentenceGraph, merged_model, write_rows
from embrew.runtimes.reference import Parity, ReferenceEncoder, reference_cases
from embrew.runtimes.stock_folder import check_text, stock_prompts, stock_tokenizer
from embrew.settings.yaml_files import parse_yaml
from embrew.storage.card import data_names
from embrew.storage.parts import check_tokenizer, write_tokenizer
from embrew.storage.saving import tolerance
from embrew.text.pattern import TEXT_FIELD
from embrew.text_encoder import TextEncoder


@dataclass(frozen=True)
class Int8:
    """How the weights of a graph become int8.

    Attributes:
        texts: texts of the user. With any, activations are quantised too, by the ranges that they give; without, the
            weights are alone.
        min_cosine: smallest mean cosine to the encoder's vectors, over the reference texts and `texts`.
        score: function that returns an encoder's scores on the user's dev data, by task; None: there is no dev data.
    """

    texts: tuple[str, ...] = ()
    min_cosine: float = 0.99
    score: Callable[[TextEncoder], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_cosine <= 1:
            raise ValueError(f"min_cosine={self.min_cosine}; give a cosine from 0 to 1")


def fixed_form(
    encoder: Encoder,
    *,
    prompt_name: str | None = None,
    max_length: int | None = None,
    num_layers: int | None = None,
    truncate_dim: int | None = None,
) -> tuple[Encoder, ReferenceEncoder]:
    """Return an encoder in a form that a tokenizer's post-processor and prompts before the text can reproduce.

    Arguments as in `export_encoder`.

    Returns:
        The encoder with one length limit, one number of memory tokens, and the layers and dimensions that are kept; and
        the encoder as its users call it, which gives the reference vectors.

    Raises:
        ValueError: no stock tokenizer can reproduce the encoder's rows; it has two length limits and `max_length`
            is not given; or texts within its limit get different numbers of memory tokens.
    """
    words = None
    one_length = _with_one_length(encoder, max_length)
    fixed = _with_fixed_memory(one_length)
    if _needs_one_prompt(fixed, prompt_name):
        words = fixed.instruction(prompt_name or "query", None)
        patterns = [template.with_words(words) for template in fixed.templates]
        template = patterns[0] if len(patterns) == 1 else patterns
        contexts = {name: context for name, context in fixed.contexts.items() if name == prompt_name}
        fixed = fixed.with_settings(template=template, prompts={}, default_prompt_name=None)
        fixed.contexts = contexts
    reference = ReferenceEncoder(one_length, words, num_layers, truncate_dim, encoder.max_length)
    fixed = cut(fixed, num_layers=num_layers, truncate_dim=truncate_dim)
    check_text(fixed)
    return fixed, reference


@dataclass(frozen=True)
class PortableEncoder:
    """An encoder in the form that other software needs.

    Attributes:
        encoder: encoder with one length limit, one number of memory tokens, and the layers and dimensions that are
            kept.
        lengths: the two length limits of the encoder that is exported.
        tokenizer: tokenizer whose post-processor adds BOS, memory tokens and the template's other tokens.
        ids: id in `tokenizer` of every learned token, by its id in `encoder`.
        model: transformers model without head, adapter merged; learned tokens, and the vectors of contexts, are rows
            of its embedding matrix.
        contexts: contexts by name, as prompts.
        prompts: strings that precede a text, by name, contexts included.
        parity: content of `parity.json`: reference texts, token ids and vectors.
        empty_texts: whether an empty text has tokens.
        int8: options for weights in int8.
    """

    encoder: Encoder
    lengths: dict[str, int]
    tokenizer: PreTrainedTokenizerBase
    ids: dict[int, int]
    model: PreTrainedModel
    contexts: dict[str, ContextPrompt]
    prompts: dict[str, str]
    parity: Parity
    empty_texts: bool
    int8: Int8 = field(default_factory=Int8)

    def graph(self) -> SentenceGraph:
        """Return the encoder's graph in float32 on the CPU; `model` keeps its data type and device."""
        in_place = self.model.dtype == torch.float32 and self.model.device.type == "cpu"
        return SentenceGraph(self.encoder, self.model if in_place else copy.deepcopy(self.model), self.ids)

    def usage(self, example: str, **values: str) -> str:
        """Return an example for the card with its `{limit}`, and its `{prompt}`: the first that has words."""
        prompt = next((words for words in self.prompts.values() if words), "")
        return example.format(limit=self.encoder.max_seq_length, prompt=prompt, **values)

    def write_text_files(self, out: Path, *, config: bool = True) -> None:
        """Write the tokenizer, and `config.json`, at the root of a folder, unless another runtime has written them."""
        if not (out / "tokenizer.json").is_file():
            write_tokenizer(self.tokenizer, out)
            check_tokenizer(self.tokenizer, out)
            if config:
                self.model.config.save_pretrained(out)


def make_portable(encoder: Encoder, reference: ReferenceEncoder, int8: Int8 | None = None) -> PortableEncoder:
    """Return an encoder in its fixed form, as of `fixed_form`, as other software needs it.

    Raises:
        ValueError: a context leaves no room for a text, or its tokens cannot be reproduced.
    """
    tokenizer, ids = stock_tokenizer(encoder)
    contexts = {name: context_prompt(encoder, tokenizer, name, context) for name, context in encoder.contexts.items()}
    model = merged_model(encoder, ids, len(tokenizer))
    for context in contexts.values():
        write_rows(model, context.rows)
    nested = nested_dimensions(encoder)
    if nested:  # vLLM reads these before a request may set dimensions
        model.config.is_matryoshka, model.config.matryoshka_dimensions = True, nested
    prompts = {**stock_prompts(encoder), **{name: context.prompt for name, context in contexts.items()}}
    longest = max(encoder.max_seq_length, *reference.lengths.values())
    parity: Parity = {
        "format": EXPORT.number,
        "tolerance": tolerance(encoder.backbone.dtype, encoder.backbone.num_layers),
        "max_length": encoder.max_seq_length,
        "exported_from": {"max_length": reference.lengths, "data": data_names(encoder.card_facts, steps=encoder.steps)},
        "encoder": encoder.describe(),
        "versions": {name: version(name) for name in ("embrew", "sentence-transformers", "transformers", "torch")},
        "cases": reference_cases(reference, encoder, longest, prompts, contexts, ids),
    }
    return PortableEncoder(
        encoder=encoder,
        lengths=reference.lengths,
        tokenizer=tokenizer,
        ids=ids,
        model=model,
        contexts=contexts,
        prompts=prompts,
        parity=parity,
        empty_texts=not any(encoder.template.adds_nothing(words) for words in ("", *encoder.prompts.values())),
        int8=int8 or Int8(),
    )


def nested_dimensions(encoder: Encoder) -> list[int]:
    """Return dimensions to which vectors may be truncated: those its recipe trained and this encoder keeps, or none."""
    keep = encoder.get_embedding_dimension()
    trained = _trained_dimensions(parse_yaml(encoder.recipe or "", source="the recipe of the encoder"))
    return sorted({keep} | {dim for dim in trained if dim < keep}) if trained else []


def _trained_dimensions(part: Any) -> set[int]:
    """Return what nested objectives in a part of a recipe train: `dims` of Matryoshka, `compression_size` of ESE."""
    if isinstance(part, list):
        return {dim for item in part for dim in _trained_dimensions(item)}
    if not isinstance(part, dict):
        return set()
    dimensions = {*part.get("dims", ()), part.get("compression_size")} - {None} if "type" in part else set()
    return dimensions | _trained_dimensions(list(part.values()))


def _with_one_length(encoder: Encoder, max_length: int | None) -> Encoder:
    """Return the same encoder with one length for queries and documents: `max_length`, or the one it has already."""
    if max_length is not None:
        return encoder.with_settings(max_length=max_length)
    lengths = sorted(set(encoder.max_length.values()))
    if len(lengths) > 1:
        limits = " and ".join(f"{side} texts at {limit} tokens" for side, limit in encoder.max_length.items())
        raise ValueError(
            f"this encoder truncates {limits}, and a stock Sentence-Transformers folder has one length for all; choose "
            f"it with --max-length N (in Python, max_length=N). With {lengths[-1]}, a long text of the shorter side "
            f"keeps more tokens than here; with {lengths[0]}, one of the longer side keeps fewer. Other texts get the "
            "same vectors"
        )
    return encoder


def _with_fixed_memory(encoder: Encoder) -> Encoder:
    """Return the same encoder without `memory_ratio`, if every text within its length limit gets one memory token."""
    ratio = encoder.settings.memory_ratio
    if ratio is None:
        return encoder
    largest = max(template.max_memory_tokens(encoder.max_seq_length) for template in encoder.templates)
    if largest > 1:
        raise ValueError(
            f"memory_ratio={ratio:g}: texts of up to {encoder.max_seq_length} tokens get 1 to {largest} memory tokens, "
            f"and a fixed number is needed here; with --max-length {int(ratio) + 1} or less every text gets one"
        )
    fixed = encoder.with_settings(memory_ratio=None)
    fixed.templates = fixed.make_templates(encoder.tokenizer, encoder.template.memory_ids[-1:])
    return fixed


def _needs_one_prompt(encoder: Encoder, prompt_name: str | None) -> bool:
    """Return whether a prompt has to be written into the template, since prompts follow or surround the text."""
    follows = any("{instruction}" in template.after for template in encoder.templates)
    instructions = [context.context.instruction for context in encoder.contexts.values()]
    needed = follows or any(TEXT_FIELD in words for words in (*encoder.prompts.values(), *instructions))
    if prompt_name is not None and not needed:
        raise ValueError(
            f"prompt_name={prompt_name!r}: this encoder's prompts come before the text, where stock models have "
            "theirs; all are exported, so leave it out"
        )
    if needed and prompt_name is None and (any(encoder.prompts.values()) or encoder.contexts):
        names = ", ".join(sorted([*encoder.prompts, *encoder.contexts]))
        raise ValueError(
            f"template={encoder.template.pattern!r} has the instruction after the text, or a prompt that continues "
            f"after it ({TEXT_FIELD}), where stock prompts cannot be; choose the prompt to write into the "
            f"template: prompt_name is one of {names}"
        )
    return needed
