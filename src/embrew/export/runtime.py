"""The one shape of a runtime: what it can hold, how its files are written, how it opens them again."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.encoder import Encoder
from embrew.export.parts import Parts


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Hide warnings, what is printed, and log lines below errors of loggers with these names."""
    levels = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def nothing_written(parts: Parts, out: Path, weights: str) -> None:
    """Write nothing: the runtime reads the Sentence-Transformers folder."""


@dataclass(frozen=True)
class Runtime:
    """Software that opens an export, or a part of it.

    Attributes:
        name: as users give it, `export --for NAME`.
        title: its name in messages.
        refusal: why the runtime cannot reproduce an encoder in its fixed form, and what to train instead; None: it can.
        opening: Python code that opens the folder as its users do, in a process without embrew. It reads `folder`,
            `parity` and `options`, and defines `version`, and `encode(case, texts)`, which returns token ids and vector
            of each text: `None` for both where the runtime documents that it reads the text otherwise, for the vector
            alone where it refuses a text beyond the limit.
        write: write its files into the folder, with weights of the given type; may add to `parts.parity`.
        options: of the code, read from the folder; raises `ValueError` if the runtime would refuse the folder.
        python: the interpreter that has the runtime; None: none has, and the export is not verified by it.
        weights: types of weights it can be given; the first is the default.
        least_cosine: smallest cosine of a vector by the type of the weights; without one, the tolerance in
            `parity.json` counts.
        simulated: the version whose source `opening` follows where the runtime itself is not run; None: it is run.
        caution: what its users must know where it gives some texts other vectors in spite of `refusal`: it is logged,
            and the card says it; None: nothing.
        note: what the card says of opening its files, in Markdown; None: nothing but what it says anyway.
        reads_stock: whether it reads the Sentence-Transformers folder, so that this is written too.
    """

    name: str
    title: str
    refusal: Callable[[Encoder], str | None]
    opening: str
    write: Callable[[Parts, Path, str], None] = nothing_written
    options: Callable[[Path, Mapping[str, Any]], dict[str, Any]] = lambda out, parity: {}
    python: Callable[[], str | None] = lambda: sys.executable
    weights: tuple[str, ...] = ("fp32",)
    least_cosine: Callable[[Mapping[str, Any], str], float | None] = lambda parity, weights: None
    simulated: str | None = None
    caution: Callable[[Encoder], str | None] | None = None
    note: Callable[[Parts], str] | None = None
    reads_stock: bool = False

    def check(self, encoder: Encoder) -> None:
        """Raise `ValueError` if the runtime cannot reproduce an encoder in its fixed form."""
        reason = self.refusal(encoder)
        if reason:
            raise ValueError(f"{self.title} cannot reproduce this encoder: {reason}")
