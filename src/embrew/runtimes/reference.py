"""Reference texts of an export: their token ids and vectors, and the comparison of an opened export with them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import torch

from embrew.encoder import Encoder
from embrew.files.formats import EXPORT
from embrew.files.reading import content_of, read_json
from embrew.passport.texts import REFERENCE_TEXTS, long_text, passport_texts
from embrew.runtimes.context_prompts import ContextPrompt
from embrew.text.texts import SIDES
from embrew.text_encoder import TextEncoder

logger = logging.getLogger(__name__)
LEAST_COSINE = 0.99
"""Of a vector computed in bfloat16 to the same in float32."""
COMPARED = 4  # texts per prompt when an export is opened: the shortest ones


class ReferenceText(TypedDict):
    """A text of `parity.json`, with its token ids in the export's vocabulary and its vector."""

    text: str
    ids: list[int]
    vector: list[float]


class Case(TypedDict, total=False):
    """Reference texts that have one prompt, in `parity.json`.

    Attributes:
        method: `encode_query`, `encode_document` or `encode`.
        prompt_name: name of the prompt in the export; None: there is none.
        prompt: words that precede every text.
        max_length: limit in tokens of a text; that of the export, or less by the tokens of a context.
        default: whether `encode` applies the prompt where none is named.
        texts: the texts.
    """

    method: str
    prompt_name: str | None
    prompt: str
    max_length: int
    default: bool
    texts: list[ReferenceText]


class Int8Result(TypedDict):
    """The difference that weights in int8 make, in `parity.json`.

    Attributes:
        activations: how activations are quantised, in words.
        texts: number of texts that were compared.
        mean_cosine: mean of their cosines to the encoder's vectors.
        min_cosine: smallest of these.
        allowed_mean_cosine: smallest mean that was allowed.
        dev: scores of both (`encoder`, `int8`) on dev data, by name.
    """

    activations: str
    texts: int
    mean_cosine: float
    min_cosine: float
    allowed_mean_cosine: float
    dev: dict[str, dict[str, float]]


Parity = TypedDict(
    "Parity",
    {
        "format": int,
        "tolerance": float,
        "max_length": int,
        "exported_from": dict[str, dict[str, int] | list[str] | None],
        "encoder": dict[str, Any],
        "versions": dict[str, str],
        "cases": list[Case],
        "runtimes": dict[str, str],
        "checks": dict[str, str],
        "verified": dict[str, dict[str, str | float | None]],
        "int8": Int8Result,
        "least_cosine": float,
        "llama.cpp": dict[str, str | list[str]],
    },
    total=False,
)
"""Content of `parity.json`: `tolerance` is the largest difference of a number; `runtimes` has the types of weights."""


@dataclass(frozen=True)
class ReferenceEncoder:
    """The encoder that is exported, called as its users call it.

    Attributes:
        encoder: encoder with the one length of the export, and nothing else changed.
        instruction: words of the prompt that is written into the template; None: the export has all prompts.
        num_layers: number of layers that the export keeps; None: all.
        truncate_dim: number of leading dimensions that the export keeps; None: all.
        lengths: the two length limits of the encoder that is exported.
    """

    encoder: Encoder
    instruction: str | None
    num_layers: int | None
    truncate_dim: int | None
    lengths: dict[str, int]

    def vectors(
        self,
        method: str,
        texts: list[str],
        prompt_name: str | None = None,
        max_length: int | None = None,
        prompt: str | None = None,
    ) -> np.ndarray:
        """Return what a method gives for the texts; with a prompt in the template, all methods are `encode` with it."""
        if self.instruction is not None and prompt_name not in self.encoder.contexts:
            method, prompt_name, prompt = "encode", None, self.instruction
        vectors = getattr(self.encoder, method)(
            texts,
            prompt_name,
            prompt,
            batch_size=batch_size(self.encoder.max_seq_length),
            show_progress_bar=False,
            truncate_dim=self.truncate_dim,
            num_layers=self.num_layers,
            max_length=max_length,
        )
        return np.asarray(vectors)


def batch_size(limit: int) -> int:
    """Return how many texts of up to `limit` tokens are encoded at a time."""
    return max(1, min(8, 16_384 // limit))


def reference_cases(
    reference: ReferenceEncoder,
    encoder: Encoder,
    longest: int,
    prompts: dict[str, str],
    contexts: Mapping[str, ContextPrompt],
    ids: dict[int, int],
) -> list[Case]:
    """Return reference texts, token ids and vectors: by `encode_query`, `encode_document`, `encode` with other prompts.

    The empty text is added where it has tokens (see `Template.adds_nothing`). The tokens of a context count towards the
    limit of a text in an export.

    Args:
        reference: gives the vectors.
        encoder: encoder as it is written into the folder; gives the token ids.
        longest: one text has more tokens than this.
        prompts: prompts of the folder.
        contexts: contexts of the folder.
        ids: new ids of learned tokens.
    """
    template, limit, begin = encoder.template, encoder.max_seq_length, len(encoder.template.first_ids)
    tokenizer = encoder.tokenizer
    long = passport_texts(tokenizer, encoder.max_seq_length)[-1:]
    texts = list(dict.fromkeys([*REFERENCE_TEXTS, *long, long_text(tokenizer, longest)]))
    cases = []
    for name in [*encoder.prompts, None]:
        method = f"encode_{name}" if name in SIDES else "encode"
        applied = name or encoder.default_prompt_name
        instruction = "" if applied is None else encoder.prompts[applied]
        compared = texts if template.adds_nothing(instruction) else [*texts, ""]
        vectors = reference.vectors(method, compared, name if method == "encode" else None)
        rows = template.rows(compared, instruction=instruction, max_length=limit)
        stock_name = applied or ("text" if "text" in prompts else None)
        case: Case = {
            "method": method,
            "prompt_name": stock_name,
            "prompt": prompts.get(stock_name or "", ""),
            "max_length": limit,
        }
        if name is None:
            case["default"] = True
        case["texts"] = _reference_texts(compared, [[ids.get(i, i) for i in row.ids] for row in rows], vectors)
        cases.append(case)
    for name, context in contexts.items():
        rows = template.rows(texts, instruction=encoder.instruction(name), max_length=context.room)
        stock_rows = [[ids.get(i, i) for i in row.ids] for row in rows]
        stock_rows = [[*row[:begin], *context.ids, *row[begin:]] for row in stock_rows]
        vectors = reference.vectors("encode", texts, name, max_length=context.room)
        cases.append(
            {
                "method": "encode",
                "prompt_name": name,
                "prompt": context.prompt,
                "max_length": context.room,
                "texts": _reference_texts(texts, stock_rows, vectors),
            }
        )
    return cases


def _reference_texts(texts: list[str], rows: list[list[int]], vectors: np.ndarray) -> list[ReferenceText]:
    return [
        {"text": text, "ids": ids, "vector": [round(float(x), 7) for x in vector]}
        for text, ids, vector in zip(texts, rows, vectors, strict=True)
    ]


def encode_case(model: TextEncoder, case: Case, texts: list[str], **options: int) -> np.ndarray:
    """Encode texts by the method of a case, with its prompt by name where the method does not apply it."""
    by_name = case["method"] == "encode" and not case.get("default")
    named = {"prompt_name": case["prompt_name"]} if by_name else {}
    return np.array(getattr(model, case["method"])(texts, show_progress_bar=False, **named, **options))


def compare_with_reference(model: TextEncoder, folder: Path, *, exact: bool, software: str) -> None:
    """Encode the shortest reference texts of each prompt of an export, and compare their vectors with those written.

    An export has one limit. Texts beyond that of their side, where the model has two, are left out.

    Args:
        model: the opened export.
        folder: folder of the export.
        exact: weights and arithmetic are float32, so that the tolerance of the export counts; else a cosine.
        software: name of the software that computes the vectors, for the message.

    Raises:
        ValueError: the vectors are others.
    """
    path = folder / EXPORT.file
    parity = cast("Parity", read_json(path, kind=EXPORT))
    with content_of(path):
        allowed = float(parity["tolerance"]) if exact else None
        least = float(parity.get("least_cosine", LEAST_COSINE))
        cases = [(case, *_shortest(case, _limit(model, case["method"]))) for case in parity["cases"]]
    for case, texts, expected in cases:
        if not texts:
            continue
        vectors = torch.from_numpy(encode_case(model, case, texts)).float()
        what = f"{software}, from {folder} ({case['prompt_name'] or 'no prompt'})"
        check_close(vectors, expected, allowed, least=least, what=what)


def _limit(model: TextEncoder, method: str) -> float:
    """Return the limit in tokens of a method's side; infinite where there is one for all."""
    limits = getattr(model, "max_length", None)
    return limits.get(method.removeprefix("encode_"), float("inf")) if isinstance(limits, dict) else float("inf")


def _shortest(case: Case, limit: float) -> tuple[list[str], torch.Tensor]:
    within = [text for text in case["texts"] if text["text"] and len(text["ids"]) <= limit]
    texts = sorted(within, key=lambda text: len(text["ids"]))[:COMPARED]
    return [text["text"] for text in texts], torch.tensor([text["vector"] for text in texts])


def check_close(
    vectors: torch.Tensor, expected: torch.Tensor, allowed: float | None, *, what: str, least: float = LEAST_COSINE
) -> None:
    """Raise unless vectors are those of the reference: up to a difference, or (None) with a least cosine.

    Raises:
        ValueError: they are not; says by how much.
    """
    vectors, expected = (torch.nn.functional.normalize(rows, dim=-1) for rows in (vectors, expected))
    difference = float((vectors - expected).abs().max())
    both_empty = (vectors == 0).all(-1) & (expected == 0).all(-1)  # an empty text without anything to pool
    cosine = float(torch.where(both_empty, 1.0, (vectors * expected).sum(-1)).min())
    logger.info("%s: largest difference %.1e, smallest cosine %.6f", what, difference, cosine)
    if allowed is None and not cosine >= least:
        raise ValueError(
            f"{what} gives other vectors: smallest cosine {cosine:.4f}, allowed {least}; use --dtype float32, "
            "or --backend torch"
        )
    if allowed is not None and not difference <= allowed:
        raise ValueError(
            f"{what} gives other vectors: largest difference {difference:.2e}, allowed {allowed:.0e}; use "
            "--backend torch"
        )
