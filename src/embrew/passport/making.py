"""Make, write and read a passport: reference texts and vectors, vectors under faults, tolerances by arithmetic."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from embrew.check_passport import FILE, FORMAT, TENSORS, distances
from embrew.files.formats import versions
from embrew.identity import vectors_hash
from embrew.model.encoder_module import EncoderModule
from embrew.passport.faults import Faults, Side, Vectors, differs, rounded
from embrew.passport.texts import CHOSEN, SPECIAL, passport_texts
from embrew.text.pattern import TEXT_FIELD
from embrew.text.texts import SIDES

NONE = ""  # name of the empty prompt
MAX_BYTES = 2_000_000
FEWEST = len(CHOSEN)  # texts per prompt and fault: the first ones
SOME = 16  # texts of a prompt other than the first
JSON_BYTES = 60_000  # of texts, token ids and names
MARGIN = 4.0  # a tolerance is the largest measured distance times this
LEAST = {"float32": 1e-5, "bfloat16": 1e-3, "float16": 1e-3, "int8": 1e-2}
"""Smallest tolerance (1 - cosine) by arithmetic: rounding moves rare texts farther than those it is measured on."""
LARGEST = 0.05
ALWAYS = ("float32", "float16", "bfloat16")  # arithmetic that a server may have unless a passport says otherwise
Embed = Callable[[str, list[str]], np.ndarray]
"""From the name of a prompt and texts to vectors."""


def make_passport(
    encoder: EncoderModule,
    *,
    name: str,
    embed: Embed | None = None,
    words: Mapping[str, str | None] | None = None,
    ids: Mapping[int, int] | None = None,
    int8: bool = False,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON object and the tensors of a passport.

    Args:
        encoder: the encoder that faults are applied to.
        name: name of the model.
        embed: what gives the right vectors; None: the encoder's own methods.
        words: what a client puts before a text, by the name of a prompt; None: cannot be put there. By default, the
            prompts of an encoder whose template begins with the instruction.
        ids: ids that a runtime's tokenizer has for the encoder's learned tokens.
        int8: a server may have weights in 8 bits.
    """
    embed = embed or partial(embed_by_name, encoder)
    words = client_words(encoder) if words is None else words
    texts = passport_texts(encoder.tokenizer, encoder.max_seq_length)
    sides = {prompt: side for prompt, side in sides_of(encoder).items() if prompt in words}
    first = next((prompt for prompt in ("query", "document") if sides.get(prompt) != sides[NONE]), NONE)
    order = sorted(sides, key=lambda prompt: (prompt != first, prompt not in SIDES))
    tensors: dict[str, np.ndarray] = {}
    prompts: dict[str, dict[str, Any]] = {}
    for prompt in order:
        numbers = list(range(len(texts))) if prompt == first else list(range(SOME))
        same = next((other for other in prompts if sides[other] == sides[prompt]), None)
        entry = {"words": words[prompt]} if same is None else {**prompts[same], "words": words[prompt]}
        if same is None:
            chosen = [texts[i] for i in numbers]
            tensor = f"right.{prompt}"
            tensors[tensor] = np.asarray(embed(prompt, chosen), dtype=np.float32)
            entry |= {"tensor": tensor, "texts": numbers, "ids": _ids(encoder, sides[prompt], chosen, ids or {})}
        prompts[prompt] = entry
    distinct = list({entry["tensor"]: prompt for prompt, entry in reversed(prompts.items())}.values())[::-1][:2]
    faults = None
    if len(encoder.templates) == 1:
        faults = Faults(encoder, [sides[prompt] for prompt in distinct], texts[:FEWEST])
    tolerances, quantised = _by_weights(faults, encoder.backbone.dtype)
    wrong = _wrong(faults, quantised, texts, distinct, prompts, tensors)
    about = {
        "format": FORMAT,
        "model": {
            "name": name,
            "hash": vectors_hash(encoder),
            "dimensions": int(tensors[f"right.{first}"].shape[1]),
            "max_length": encoder.max_seq_length,
            "normalized": encoder.normalize,
            "arithmetic": str(encoder.backbone.dtype).removeprefix("torch."),
        },
        "texts": texts,
        "special": texts.index(SPECIAL),
        "prompts": prompts,
        "wrong": wrong,
        "tolerances": tolerances,
        "allowed": [*ALWAYS, *(["int8"] if int8 else [])],
        "versions": versions(),
    }
    return about, tensors


def write_passport(passport: tuple[dict[str, Any], dict[str, np.ndarray]], folder: Path) -> None:
    """Write a passport into a folder that is being written."""
    for name, data in passport_files(passport).items():
        (folder / name).write_bytes(data)


def passport_files(passport: tuple[dict[str, Any], dict[str, np.ndarray]]) -> dict[str, bytes]:
    """Return the content of the two files of a passport, by name."""
    about, tensors = passport
    data = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    about = {**about, "sha256": hashlib.sha256(data).hexdigest()}
    return {FILE: json.dumps(about, ensure_ascii=False, allow_nan=False).encode(), TENSORS: data}


def embed_by_name(model: Any, prompt: str, texts: list[str]) -> np.ndarray:
    """Return what the method of a model that belongs to a prompt gives."""
    options = {"show_progress_bar": False, **({} if isinstance(model, EncoderModule) else {"batch_size": 8})}
    if prompt in SIDES:
        return np.asarray(getattr(model, f"encode_{prompt}")(texts, **options))
    named = {"prompt": ""} if prompt == NONE else {"prompt_name": prompt}
    return np.asarray(model.encode(texts, **named, **options))


def sides_of(encoder: EncoderModule) -> dict[str, Side]:
    """Return every prompt as the encoder applies it, by name; the empty one first."""
    default = encoder.prompts.get(encoder.settings.default_prompt_name or "", "")
    sides = {NONE: Side("", encoder.max_seq_length)}
    for name in SIDES:
        sides[name] = Side(encoder.prompts.get(name, default), encoder.max_length[name])
    return sides | {
        name: Side(text, encoder.max_seq_length) for name, text in encoder.prompts.items() if name not in sides
    }


def client_words(encoder: EncoderModule) -> dict[str, str | None]:
    """Return what a client puts before a text, by prompt; None where the encoder alone can put it there."""
    is_before = all(template.before == "{instruction}" for template in encoder.templates)
    limits = set(encoder.max_length.values())
    return {
        name: side.instruction
        if not side.instruction or (is_before and len(limits) == 1 and TEXT_FIELD not in side.instruction)
        else None
        for name, side in sides_of(encoder).items()
    }


def _ids(encoder: EncoderModule, side: Side, texts: Sequence[str], ids: Mapping[int, int]) -> list[list[int]]:
    rows = encoder.template.rows(texts, instruction=side.instruction, max_length=side.limit)
    return [[ids.get(i, i) for i in row.ids] for row in rows]


def _wrong(
    faults: Faults | None,
    quantised: Vectors,
    texts: Sequence[str],
    distinct: Sequence[str],
    prompts: Mapping[str, dict[str, Any]],
    tensors: dict[str, np.ndarray],
) -> list[dict[str, Any]]:
    """Add the vectors under faults to `tensors`, with the first two prompts that differ; return what they are."""
    entries: list[dict[str, Any]] = []
    for prompt in prompts:
        known = {prompts[prompt]["tensor"]}
        for other, entry in sorted(prompts.items(), key=lambda item: item[0] != NONE):
            if entry["tensor"] in known:
                continue
            known.add(entry["tensor"])
            fault = "prompt_missing" if other == NONE else f"prompt_other_{other}"
            entries.append({"fault": fault, "prompt": prompt, "tensor": entry["tensor"], "texts": entry["texts"]})
    last, short = len(texts) - 1, list(range(FEWEST))
    computed: list[tuple[str, str, list[int], np.ndarray]] = []
    if faults is not None:
        by_fault = {**faults.vectors(), **quantised}
        right = by_fault.pop("")
        for name, vectors in by_fault.items():
            for prompt, rows, expected in zip(
                distinct, np.split(vectors, len(distinct)), np.split(right, len(distinct)), strict=True
            ):
                if differs(rows, expected):
                    computed.append((name, prompt, short, rows))
        long = faults.truncated(texts[last])
        computed += [(name, distinct[0], [last], row[None]) for name, row in long.items() if differs(row, long[""])]
    room = MAX_BYTES - JSON_BYTES - sum(tensor.nbytes for tensor in tensors.values())
    if sum(2 * vectors.size for *_, vectors in computed) > room:
        computed = [each for each in computed if "+pooling" not in each[0]]
    for name, prompt, numbers, vectors in computed:
        tensor = f"wrong.{prompt}.{name}"
        tensors[tensor] = vectors.astype(np.float16)
        entries.append({"fault": name, "prompt": prompt, "tensor": tensor, "texts": numbers})
    return entries


def _by_weights(faults: Faults | None, dtype: torch.dtype) -> tuple[dict[str, float], Vectors]:
    """Return 1 - cosine by arithmetic, and the vectors of weights in 8 and 4 bits.

    A tolerance is `MARGIN` times the largest distance that is measured on the encoder.
    """
    measured, vectors = dict.fromkeys(LEAST, 0.0), Vectors()
    if faults is not None:
        right, short = faults.vectors_of(faults.rows), _through(torch.bfloat16)
        vectors = {f"quantised_{bits}bit": faults.with_weights(partial(rounded, bits=bits), short) for bits in (8, 4)}
        for name, rows in (("bfloat16", faults.with_weights(short, short)), ("int8", vectors["quantised_8bit"])):
            measured[name] = float(distances(rows, right).max()) if differs(rows, right) else 0.0
    tolerances = {name: min(LARGEST, max(LEAST[name], MARGIN * each)) for name, each in measured.items()}
    tolerances["float16"] = tolerances["bfloat16"]
    if dtype != torch.float32:
        tolerances["float32"] = tolerances["bfloat16"]
    return {name: float(f"{tolerance:.3g}") for name, tolerance in tolerances.items()}, vectors


def _through(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that rounds to a dtype."""
    return lambda values: values.to(dtype).to(values.dtype)
