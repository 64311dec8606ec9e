"""Reference texts of an export, with the token ids and vectors that every runtime has to give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from embrew.encoder import Encoder
from embrew.export.contexts import ContextPrompt
from embrew.storage.saving import TEXTS


@dataclass(frozen=True)
class Live:
    """The encoder that is exported, called as its users call it.

    Attributes:
        encoder: with the one length of the export, and nothing else changed.
        instruction: the words of the prompt that is written into the template; None: the export has all prompts.
        options: keywords of every call: the layers and dimensions that the export keeps.
        lengths: the two length limits of the encoder that is exported.
    """

    encoder: Encoder
    instruction: str | None
    options: Mapping[str, Any]
    lengths: dict[str, int]

    def vectors(self, method: str, texts: list[str], prompt_name: str | None = None, **options: Any) -> np.ndarray:
        """Return what a method gives for the texts; with a prompt in the template, all methods are `encode` with it."""
        size = max(1, min(8, 16_384 // self.encoder.max_seq_length))
        options = {**self.options, "batch_size": size, "show_progress_bar": False, **options}
        if self.instruction is not None and prompt_name not in self.encoder.contexts:
            return np.asarray(self.encoder.encode(texts, prompt=self.instruction, **options))
        return np.asarray(getattr(self.encoder, method)(texts, prompt_name, **options))


def long_text(encoder: Encoder, limit: int) -> str:
    """Return a text of more than `limit` tokens, no part of which repeats another."""
    text = ""
    for number in count(1):
        text += f"Part {number} of a long text has the number {number}, and {number * number} is its square. "
        if len(text) > limit and len(encoder.tokenizer(text, add_special_tokens=False)["input_ids"]) > limit:
            break
    return text


def parity_cases(
    live: Live,
    encoder: Encoder,
    longest: int,
    prompts: dict[str, str],
    contexts: Mapping[str, ContextPrompt],
    ids: dict[int, int],
) -> list[dict[str, Any]]:
    """Return reference texts, token ids and vectors: by `encode_query`, `encode_document`, `encode` with other prompts.

    The empty text is added where it has tokens (see `Template.adds_nothing`). The tokens of a context count towards the
    limit of a text in an export.

    Args:
        live: gives the vectors.
        encoder: as it is written into the folder; gives the token ids.
        longest: one text has more tokens than this.
        prompts: of the folder.
        contexts: of the folder.
        ids: new ids of learned tokens.
    """
    template, limit, begin = encoder.template, encoder.max_seq_length, len(encoder.template.first_ids)
    texts = [*TEXTS, long_text(encoder, longest)]
    cases = []
    for name in [*encoder.prompts, None]:
        method = f"encode_{name}" if name in ("query", "document") else "encode"
        applied = name or encoder.default_prompt_name
        instruction = "" if applied is None else encoder.prompts[applied]
        compared = texts if template.adds_nothing(instruction) else [*texts, ""]
        vectors = live.vectors(method, compared, name if method == "encode" else None)
        rows = template.rows(compared, instruction=instruction, max_length=limit)
        stock_name = applied or ("text" if "text" in prompts else None)
        about = {"method": method, "prompt_name": stock_name, "prompt": prompts.get(stock_name or "", "")}
        default = {"default": True} if name is None else {}
        own = [[ids.get(i, i) for i in row.ids] for row in rows]
        cases.append({**about, "max_length": limit, **default, "texts": _reference_texts(compared, own, vectors)})
    for name, context in contexts.items():
        rows = template.rows(texts, instruction=encoder.instruction(name), max_length=context.room)
        own = [[ids.get(i, i) for i in row.ids] for row in rows]
        own = [[*row[:begin], *context.ids, *row[begin:]] for row in own]
        vectors = live.vectors("encode", texts, name, max_length=context.room)
        about = {"method": "encode", "prompt_name": name, "prompt": context.prompt}
        cases.append({**about, "max_length": context.room, "texts": _reference_texts(texts, own, vectors)})
    return cases


def _reference_texts(texts: list[str], ids: list[list[int]], vectors: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"text": text, "ids": own, "vector": [round(float(x), 7) for x in vector]}
        for text, own, vector in zip(texts, ids, vectors, strict=True)
    ]
