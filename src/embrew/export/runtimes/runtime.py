"""What export needs to know of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.encoder import Encoder
from embrew.export.parts import Parts


@dataclass(frozen=True)
class Runtime:
    """Software that opens an export, or a part of it.

    Attributes:
        name: as users give it, `export --for NAME`.
        check: raise `ValueError` if the runtime cannot reproduce an encoder in its fixed form: the reason, and what to
            train instead.
        write: write its files into the folder, with weights of the given type; may add to `parts.parity`.
        verify: open what was written, as the runtime would, and compare token ids and vectors with the reference in
            `parity.json`; raise `RuntimeError` if they differ. Arguments: the folder, its `parity.json`, the device.
            Returns what `parity.json` should say of it, under `verified`, if anything.
        weights: types of weights it can be given; the first is the default.
        simulated: the version whose source `verify` follows where the runtime itself is not run; None: it is run.
        caution: what its users must know where it gives some texts other vectors in spite of `check`: it is logged, and
            the card says it; None: nothing.
        note: what the card says of opening its files, in Markdown; None: nothing but what it says anyway.
        reads_stock: whether it reads the Sentence-Transformers folder, so that this is written too.
    """

    name: str
    check: Callable[[Encoder], None]
    write: Callable[[Parts, Path, str], None]
    verify: Callable[[Path, Mapping[str, Any], str], Mapping[str, Any] | None]
    weights: tuple[str, ...] = ("fp32",)
    simulated: str | None = None
    caution: Callable[[Encoder], str | None] | None = None
    note: Callable[[Parts], str] | None = None
    reads_stock: bool = False
