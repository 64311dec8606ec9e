"""Reference texts of an export, with the token ids and vectors that every runtime has to give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from embrew.encoder import Encoder
from embrew.export.contexts import Baked


@dataclass(frozen=True)
class Live:
    """The encoder that is exported, called as its users call it.

    Attributes:
        encoder: with the one length of the export, and nothing else changed.
        instruction: the words of the prompt that is written into the template; None: the export has all prompts.
        options: keywords of every call: the layers and dimensions that the export keeps.
    """

    encoder: Encoder
    instruction: str | None
    options: Mapping[str, Any]

    def vectors(self, method: str, texts: list[str], prompt_name: str | None = None, **options: Any) -> np.ndarray:
        """Return what a method gives for the texts; with baked words, all methods are `encode` with these."""
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
    live: Live, encoder: Encoder, texts: list[str], prompts: dict[str, str], ids: dict[int, int]
) -> list[dict[str, Any]]:
    """Return reference texts, token ids and vectors: by `encode_query`, `encode_document`, `encode` with other prompts.

    Args:
        live: gives the vectors.
        encoder: as it is written into the folder; gives the token ids.
        texts: the reference texts; the empty one is added where it has tokens (see `Template.adds_nothing`).
        prompts: of the folder.
        ids: new ids of learned tokens.
    """
    cases = []
    for name in [*encoder.prompts, None]:
        method = f"encode_{name}" if name in ("query", "document") else "encode"
        called, default = name, {"default": True} if name is None else {}
        name = name or encoder.default_prompt_name
        instruction = "" if name is None else encoder.prompts[name]
        compared = texts if encoder.template.adds_nothing(instruction) else [*texts, ""]
        vectors = live.vectors(method, compared, None if called in ("query", "document") else called)
        rows = encoder.template.rows(compared, instruction=instruction, max_length=encoder.max_seq_length)
        stock_name = ("text" if "text" in prompts else None) if name is None else name
        own = [[ids.get(i, i) for i in row.ids] for row in rows]
        cases.append(
            {
                "method": method,
                "prompt_name": stock_name,
                "prompt": prompts.get(stock_name or "", ""),
                "max_length": encoder.max_seq_length,
                **default,
                "texts": reference_texts(compared, own, vectors),
            }
        )
    return cases


def context_cases(
    live: Live, encoder: Encoder, texts: list[str], baked: dict[str, Baked], ids: dict[int, int]
) -> list[dict[str, Any]]:
    """Return the same for contexts; in a stock folder, their tokens count towards the limit of a text."""
    begin, cases = len(encoder.template.first_ids), []
    for name, context in baked.items():
        rows = encoder.template.rows(texts, instruction=encoder.instruction(name), max_length=context.room)
        own = [[ids.get(i, i) for i in row.ids] for row in rows]
        whole = [[*row[:begin], *context.ids, *row[begin:]] for row in own]
        vectors = live.vectors("encode", texts, name, max_length=context.room)
        cases.append(
            {
                "method": "encode",
                "prompt_name": name,
                "prompt": context.prompt,
                "max_length": context.room,  # of the text with its instruction, where a context does not count
                "texts": reference_texts(texts, whole, vectors),
            }
        )
    return cases


def reference_texts(texts: list[str], ids: list[list[int]], vectors: np.ndarray) -> list[dict[str, Any]]:
    """Return texts with their token ids and vectors, for JSON."""
    return [
        {"text": text, "ids": own, "vector": [round(float(x), 7) for x in vector]}
        for text, own, vector in zip(texts, ids, vectors, strict=True)
    ]
