"""The passport of an export: what servers that run it have to give, with prompts as words before a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from embrew.passport.making import NONE, make_passport, sides_of
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.reference import ReferenceEncoder
from embrew.text.texts import SIDES


def passport_of_export(
    portable: PortableEncoder, reference: ReferenceEncoder, weights: Iterable[str] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the passport of an encoder in its fixed form.

    Args:
        portable: the encoder as it is written.
        reference: gives the right vectors.
        weights: types of weights of the export's files.
    """
    encoder = portable.encoder

    def embed(prompt: str, texts: list[str]) -> np.ndarray:
        if prompt in SIDES:
            return reference.vectors(f"encode_{prompt}", texts)
        if prompt == NONE and reference.instruction is None:
            return reference.vectors("encode", texts, prompt="")
        return reference.vectors("encode", texts, prompt or None)

    before = encoder.template.before
    words = {name: before.replace("{instruction}", side.instruction) for name, side in sides_of(encoder).items()}
    int8 = "int8" in set(weights)
    return make_passport(encoder, name=encoder.base.name, embed=embed, words=words, ids=portable.ids, int8=int8)
