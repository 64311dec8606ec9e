"""The passport that an index or a folder of vectors carries: its two files, and what they say of another model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from embrew.check_passport import FILE, TENSORS, Check, Passport, check
from embrew.files.reading import Place
from embrew.files.writing import atomic_path
from embrew.text.texts import SIDES

PassportFiles = Mapping[str, bytes]
"""Content of `passport.json` and `passport.safetensors`."""


def passport_sha256(files: PassportFiles | None) -> str | None:
    """Return the sha256 of `passport.json`, which holds that of the tensors."""
    return None if files is None else hashlib.sha256(files[FILE]).hexdigest()


def write_files(files: PassportFiles, folder: Place) -> None:
    """Write the files of a passport into a folder."""
    for name, data in files.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(data)


def read_files(folder: Place, sha256: str | None, *, repair: str) -> dict[str, bytes] | None:
    """Return the files of the passport that a manifest names; None: it names none.

    Raises:
        ValueError: they are missing or have changed; says what to do, `repair`.
    """
    if sha256 is None:
        return None
    try:
        files = {name: (folder / name).read_bytes() for name in (FILE, TENSORS)}
        if passport_sha256(files) != sha256:
            raise ValueError(f"{FILE} has another sha256")
        Passport.parse(files.__getitem__, folder / FILE)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{folder / FILE} or {TENSORS} is missing or has changed since it was written; {repair}"
        ) from error
    return files


def embed_side(model: Any, side: str, texts: list[str], **options: Any) -> np.ndarray:
    """Return float32 vectors of texts as queries or documents, by any model with the methods for these."""
    vectors = getattr(model, f"encode_{side}")(texts, show_progress_bar=False, convert_to_numpy=True, **options)
    return np.asarray(vectors, dtype=np.float32)


def checks_of(files: PassportFiles, model: Any) -> dict[str, Check]:
    """Compare the queries and the documents of a model with a passport."""
    passport = Passport.parse(files.__getitem__, FILE)
    return {side: check(passport, partial(embed_side, model, side), prompt=side) for side in SIDES}


def fault_between(files: PassportFiles | None, model: Any) -> str:
    """Say what lies between a model and the one that made vectors with a passport, as the end of a sentence.

    Nothing is said without a passport.
    """
    if files is None:
        return ""
    try:
        verdicts = {side: result.verdict for side, result in checks_of(files, model).items()}
    except ValueError as error:
        return f" (its passport cannot be compared: {error})"
    if len({*verdicts.values()}) == 1:
        return f" (by its passport, {verdicts['query']})"
    return f" (by its passport, queries are {verdicts['query']}; documents are {verdicts['document']})"
