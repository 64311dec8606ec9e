"""The vectors that a runtime has to give: of an export, or computed from an encoder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from embrew.check_passport import FILE, TENSORS, Passport, candidates_of
from embrew.export.passport import passport_of_export
from embrew.files.checksums import Damaged, file_sha256, read_checksums
from embrew.files.formats import EXPORT
from embrew.files.reading import content_of, read_json
from embrew.passport.texts import REFERENCE_TEXTS, long_text
from embrew.runtimes.portable import fixed_form, make_portable
from embrew.runtimes.reference import Parity
from embrew.runtimes.runtime import Prompt
from embrew.text.texts import SIDES

if TYPE_CHECKING:
    from embrew.encoder import Encoder

REPAIR = "make the export again"
TextKey = tuple[str, str]
"""Words of a prompt, and text."""


@dataclass(frozen=True)
class ReferenceText:
    """A text with a prompt.

    Attributes:
        prompt: prompt before the text.
        text: text without the prompt; not empty together with it.
        ids: token ids, in the export's vocabulary.
        vector: vector `(dimensions,)`.
    """

    prompt: Prompt
    text: str
    ids: list[int]
    vector: np.ndarray

    @property
    def key(self) -> TextKey:
        """Words of the prompt, and the text."""
        return self.prompt.words, self.text


@dataclass(frozen=True)
class WrongVectors:
    """Unit vectors of the same texts under faults, of a passport.

    Attributes:
        rows: prompt, as words, and text of each row.
        vectors: vectors `(rows, dimensions)` by fault; `+` separates faults that come together.
        long: prompt and text of the row that is truncated.
        truncated: vector `(dimensions,)` of that text by fault.
    """

    rows: list[TextKey]
    vectors: dict[str, np.ndarray]
    long: TextKey
    truncated: dict[str, np.ndarray]

    @classmethod
    def of(cls, passport: Passport) -> WrongVectors:
        """Return the vectors under faults of a passport."""
        texts, prompts = passport.about["texts"], passport.about["prompts"]
        keys = {(entry["words"], texts[i]): (name, i) for name, entry in prompts.items() for i in entry["texts"]}
        vectors, base = candidates_of(passport, list(keys.values()))
        del vectors[""]
        long = len(texts) - 1
        stored = {name: passport.wrong(name) for name in prompts}
        by_prompt = {
            name: {fault: rows[long] for fault, rows in faults.items() if "truncated" in fault and long in rows}
            for name, faults in stored.items()
        }
        prompt = next((name for name, truncated in by_prompt.items() if truncated), next(iter(prompts)))
        words = {name: str(entry["words"]) for name, entry in prompts.items()}
        rows = [(words[name], texts[i]) for name, i in base] if vectors else []
        return cls(rows, vectors, (words[prompt], texts[long]), by_prompt[prompt])


@dataclass(frozen=True)
class Reference:
    """Texts and the vectors that they have.

    Attributes:
        name: name of the encoder or export.
        texts: texts in the order of their prompts.
        max_length: limit in tokens of every text, template and prompt included; texts that are longer are compared on
            their own.
        weights: type of the weights of each runtime that the export is for.
        is_bf16: whether the encoder computed these vectors in bfloat16.
        least_cosine: cosine that texts had to reach when an export in int8 was verified; None: it is not in int8.
        wrong: vectors under deliberate faults.
    """

    name: str
    texts: list[ReferenceText]
    max_length: int
    weights: Mapping[str, str]
    is_bf16: bool
    least_cosine: float | None
    wrong: WrongVectors


def reference_of_export(name: str) -> Reference | None:
    """Return the reference vectors of an export, whose model is not opened; None: it is no folder of an export.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: damaged files.
    """
    folder = Path(name)
    path = folder / EXPORT.file
    if not os.path.lexists(path):
        return None
    parity = cast("Parity", read_json(path, keys=("cases", "max_length"), repair=REPAIR, kind=EXPORT))
    listed = read_checksums(folder) or {}
    for file in (path, folder / FILE, folder / TENSORS):
        if file.name in listed and listed[file.name] != file_sha256(file):
            raise Damaged(f"{file} has changed since it was written; copy it again, or {REPAIR}")
    with content_of(path, repair=REPAIR):
        return _reference(name, parity, WrongVectors.of(Passport.read(folder)))


def reference_of_encoder(
    name: str, *, by_methods: bool, max_length: int | None = None, pooling: str | None = None
) -> Reference:
    """Return the reference vectors of an encoder.

    Args:
        name: a folder, recipe or Hub id, as `open_model` takes it.
        max_length: limit in tokens of an export of an encoder with two limits; not with `by_methods`.
        pooling: as `open_model` takes it.
        by_methods: what its methods give, of any encoder, without vectors under faults; else those of an export that
            would be made of it.

    Raises:
        FileNotFoundError: no such model.
        ValueError: damaged files; no encoder of embrew; one that no export can reproduce, unless `by_methods`.
    """
    from embrew.encoder import Encoder
    from embrew.opening import open_model

    encoder = open_model(name, pooling=pooling)
    if not isinstance(encoder, Encoder):
        raise ValueError(f"{name} is no encoder of embrew, so there are no reference vectors; give one, or its export")
    if by_methods:
        return _of_methods(name, encoder)
    fixed, reference = fixed_form(encoder, max_length=max_length)
    portable = make_portable(fixed, reference)
    passport = Passport(*passport_of_export(portable, reference))
    return _reference(name, portable.parity, WrongVectors.of(passport))


def export_around(path: Path) -> Parity:
    """Return the `parity.json` of the export that a file or folder is, or is part of; empty: there is none."""
    for folder in (path, *path.parents[:2]) if path.exists() else ():
        if os.path.lexists(folder / EXPORT.file):
            values = read_json(folder / EXPORT.file, keys=("max_length",), repair=REPAIR, kind=EXPORT)
            return cast("Parity", values)
    return {}


def _reference(name: str, parity: Parity, wrong: WrongVectors) -> Reference:
    limit = int(parity["max_length"])
    texts = []
    for case in parity["cases"]:
        is_context = case.get("max_length", limit) < limit
        prompt = Prompt(case["prompt_name"], case["prompt"], case["method"], bool(case.get("default")), is_context)
        for entry in case["texts"]:
            if prompt.words + entry["text"]:  # most runtimes refuse empty texts
                texts.append(
                    ReferenceText(prompt, entry["text"], entry["ids"], np.array(entry["vector"], dtype=np.float32))
                )
    if not texts:
        raise ValueError("it holds no reference texts")
    is_bf16 = parity.get("encoder", {}).get("dtype") == "bfloat16"
    weights, least_cosine = dict(parity.get("runtimes", {})), parity.get("least_cosine")
    return Reference(name, texts, limit, weights, is_bf16, least_cosine, wrong)


def _of_methods(name: str, encoder: Encoder) -> Reference:
    """Return what `encode_query`, `encode_document`, and `encode` with every other prompt and context give."""
    words = [*REFERENCE_TEXTS, long_text(encoder.tokenizer, encoder.max_seq_length), ""]
    others = [name for name in [*encoder.prompts, *encoder.contexts] if name not in SIDES]
    texts = []
    for prompt_name in (*SIDES, None, *others):
        method = f"encode_{prompt_name}" if prompt_name in SIDES else "encode"
        instruction, context = encoder.resolve_prompt(prompt_name)
        limit = encoder.max_length.get(prompt_name or "", encoder.max_seq_length)
        rows = encoder.rows_by_text(words, instruction, context, limit)
        vectors = np.asarray(getattr(encoder, method)(words, prompt_name, show_progress_bar=False))
        prompt = Prompt(prompt_name, prompt_name or "", method, prompt_name is None, context is not None)
        for text, by_template, vector in zip(words, rows, vectors, strict=True):
            if vector.any():  # an empty text may have nothing to pool
                texts.append(ReferenceText(prompt, text, max((list(row.ids) for row in by_template), key=len), vector))
    longest = max(len(text.ids) for text in texts)
    is_bf16 = encoder.backbone.dtype == torch.bfloat16
    return Reference(name, texts, longest + 1, {}, is_bf16, None, WrongVectors([], {}, ("", ""), {}))
