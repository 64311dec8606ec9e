"""The vectors that a runtime has to give: of an export, or computed from an encoder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embrew.encoding import rows_by_text
from embrew.export.wrong_vectors import FILE, WrongVectors
from embrew.files.checksums import Damaged, file_sha256, read_checksums
from embrew.files.formats import ENCODER, EXPORT
from embrew.files.reading import content_of, read_json
from embrew.storage.saving import TEXTS
from embrew.text.texts import SIDES

if TYPE_CHECKING:
    from embrew.encoder import Encoder

AGAIN = "make the export again"


@dataclass(frozen=True)
class Prompt:
    """What precedes a text.

    Attributes:
        name: of the prompt; None: the text has none.
        words: the prompt itself; where prompts are given by name only, this name.
        method: method of Sentence-Transformers that applies it: `encode_query`, `encode_document` or `encode`.
        is_default: whether that method applies it where no prompt is named.
        is_context: whether it is a context, which an encoder does not count towards the limit of a text.
    """

    name: str | None
    words: str
    method: str
    is_default: bool
    is_context: bool


@dataclass(frozen=True)
class Case:
    """Texts with one prompt.

    Attributes:
        prompt: what precedes them.
        texts: without the prompt; none is empty together with it.
        ids: token ids of each text, in the export's vocabulary.
        vectors: `(texts, dimensions)`.
    """

    prompt: Prompt
    texts: list[str]
    ids: list[list[int]]
    vectors: np.ndarray


@dataclass(frozen=True)
class Reference:
    """Texts and the vectors that they have.

    Attributes:
        name: the encoder or export.
        cases: texts by prompt.
        max_length: limit in tokens of every text, template and prompt included; texts that are longer are compared on
            their own.
        weights: type of the weights of each runtime that the export is for.
        is_bf16: whether the encoder computed these vectors in bfloat16.
        least_cosine: cosine that texts had to reach when an export in int8 was verified; None: it is not in int8.
        wrong: vectors under deliberate faults.
        tokenizer: file `tokenizer.json` of the export, or None.
    """

    name: str
    cases: list[Case]
    max_length: int
    weights: Mapping[str, str]
    is_bf16: bool
    least_cosine: float | None
    wrong: WrongVectors
    tokenizer: Path | None

    @property
    def dimensions(self) -> int:
        """Dimensions of a vector."""
        return int(self.cases[0].vectors.shape[1])


def reference_of_export(name: str) -> Reference | None:
    """Return the reference vectors of an export, whose model is not opened; None: it is an encoder, or a name of one.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a folder of neither; damaged files.
    """
    folder = Path(name)
    if os.path.lexists(folder / EXPORT.file):
        return _of_export(folder)
    if not folder.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise FileNotFoundError(f"no folder {name}; give an encoder, or the folder of an export with {EXPORT.file}")
    if not folder.is_dir() or any(os.path.lexists(folder / file) for file in (ENCODER.file, "run.json")):
        return None
    if os.path.lexists(folder / "config.json") and not os.path.lexists(folder / "modules.json"):
        return None
    raise ValueError(
        f"{name} has no {EXPORT.file} and is no encoder of embrew, so there are no reference vectors; give the folder "
        "of an encoder, or one that embrew export made"
    )


def export_limit(against: str) -> int | None:
    """Return the limit in tokens of the local export that a runtime opens, or a file of; None: there is none."""
    path = Path(against)
    for folder in (path, *path.parents[:2]):
        if folder.is_dir() and os.path.lexists(folder / EXPORT.file):
            return int(read_json(folder / EXPORT.file, keys=("max_length",), repair=AGAIN, kind=EXPORT)["max_length"])
    return None


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
    return _of_methods(name, encoder) if by_methods else _of_encoder(name, encoder, max_length)


def _of_export(folder: Path) -> Reference:
    path, wrong = folder / EXPORT.file, folder / FILE
    parity = read_json(path, keys=("cases", "max_length"), repair=AGAIN, kind=EXPORT)
    listed = read_checksums(folder) or {}
    if not wrong.is_file():
        raise Damaged(f"{wrong} is missing; copy it again, or {AGAIN}")
    for file in (path, wrong):
        if listed.get(file.name, file_sha256(file)) != file_sha256(file):
            raise Damaged(f"{file} has changed since it was written; copy it again, or {AGAIN}")
    tokenizer = folder / "tokenizer.json"
    with content_of(path, repair=AGAIN):
        return _reference(
            str(folder),
            parity,
            wrong=WrongVectors.read(wrong),
            tokenizer=tokenizer if tokenizer.is_file() else None,
        )


def _of_encoder(name: str, encoder: Encoder, max_length: int | None) -> Reference:
    from embrew.export.parts import fixed_form, make_parts
    from embrew.export.wrong_vectors import wrong_vectors

    parts = make_parts(fixed_form(encoder, max_length=max_length))
    return _reference(name, parts.parity, wrong=wrong_vectors(parts), tokenizer=None)


def _of_methods(name: str, encoder: Encoder) -> Reference:
    """Return what `encode_query`, `encode_document`, and `encode` with every other prompt and context give."""
    from embrew.export.parity import long_text

    texts = [*TEXTS, long_text(encoder, encoder.max_seq_length), ""]
    others = [each for each in [*encoder.prompts, *encoder.contexts] if each not in SIDES]
    cases = []
    for asked in (*SIDES, None, *others):
        method = f"encode_{asked}" if asked in SIDES else "encode"
        words, context = encoder.resolve_prompt(asked)
        limit = encoder.max_length.get(asked or "", encoder.max_seq_length)
        rows = rows_by_text(encoder, texts, words, context, limit)
        vectors = np.asarray(getattr(encoder, method)(texts, asked, show_progress_bar=False))
        kept = [i for i, vector in enumerate(vectors) if vector.any()]  # an empty text may have nothing to pool
        prompt = Prompt(asked, asked or "", method, asked is None, context is not None)
        ids = [max((list(row.ids) for row in rows[i]), key=len) for i in kept]
        cases.append(Case(prompt, [texts[i] for i in kept], ids, vectors[kept]))
    longest = max(len(ids) for case in cases for ids in case.ids)
    no_faults = WrongVectors([], {}, ("", ""), {})
    is_bf16 = encoder.backbone.dtype == torch.bfloat16
    return Reference(name, cases, longest + 1, {}, is_bf16, None, no_faults, None)


def _reference(name: str, parity: Mapping[str, Any], *, wrong: WrongVectors, tokenizer: Path | None) -> Reference:
    limit = int(parity["max_length"])
    cases = [case for case in (_case(case, limit) for case in parity["cases"]) if case.texts]
    if not cases:
        raise ValueError("it holds no reference texts")
    return Reference(
        name,
        cases,
        limit,
        dict(parity.get("runtimes", {})),
        parity.get("encoder", {}).get("dtype") == "bfloat16",
        parity.get("least_cosine"),
        wrong,
        tokenizer,
    )


def _case(case: Mapping[str, Any], limit: int) -> Case:
    texts = [text for text in case["texts"] if case["prompt"] + text["text"]]  # most runtimes refuse empty texts
    is_context = case.get("max_length", limit) < limit
    prompt = Prompt(case["prompt_name"], case["prompt"], case["method"], bool(case.get("default")), is_context)
    vectors = np.array([text["vector"] for text in texts], dtype=np.float32)
    return Case(prompt, [text["text"] for text in texts], [text["ids"] for text in texts], vectors)
