"""What a runtime is: which encoders it can reproduce, how its files are written, verified and opened."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embrew.encoder import Encoder
from embrew.runtimes.opened import OpenedRuntime
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.reference import Parity
from embrew.runtimes.stock_folder import Reading

RuntimeName = Literal["sentence-transformers", "openvino", "onnx", "llama.cpp", "vllm", "tei"]
Option = str | bool | Mapping[str, str] | Reading
INSTALLED_ONLY = "import sys; sys.path[:] = filter(None, sys.path)\n"
"""Begins what `python -c` runs: modules are not taken from the current folder. `-P` does this from Python 3.11 on."""


@contextmanager
def hide_output(*names: str) -> Iterator[None]:
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


def write_nothing(portable: PortableEncoder, out: Path, weights: str) -> None:
    """Write nothing: the runtime reads the Sentence-Transformers folder."""


@dataclass(frozen=True)
class Runtime:
    """Software that opens an export, or a part of it.

    Attributes:
        name: name in `export --for NAME`.
        title: name in messages.
        refusal: function that returns why the runtime cannot reproduce an encoder in its fixed form, and what to train
            instead; None: it can.
        script: Python code that opens the folder as its users do, in a process without embrew. It reads `folder`,
            `parity` and `options`, and defines `version`, and `encode(case, texts)`, which returns token ids and vector
            of each text: `None` for both where the runtime documents that it reads the text otherwise, for the vector
            alone where it refuses a text beyond the limit.
        opening: function that returns code or a command, in one line, with which users open the folder.
        write: function that writes the runtime's files into the folder, with weights of the given type; it may add to
            `portable.parity`.
        options: function that returns what `script` reads as `options`; it raises `ValueError` if the runtime would
            refuse the folder.
        python: function that returns the interpreter that has the runtime; None: none has, and the export is not
            verified by it.
        weights: types of weights that can be written; the first is the default.
        least_cosine: function that returns the smallest cosine of a vector by the type of the weights; None: the
            tolerance in `parity.json` counts.
        simulated: version whose source `script` follows where the runtime itself is not run; None: it is run.
        caution: function that returns what its users must know where it gives some texts other vectors in spite of
            `refusal`, which is logged and written into the card; None: nothing.
        usage: function that returns what the card says of opening its files, in Markdown; None: nothing more.
        reads_stock: whether it reads the Sentence-Transformers folder, so that this is written too.
        files: patterns of the files by which a folder or file of the runtime is recognised; none: it is a server.
        open: function that opens such a file, or the folder of Sentence-Transformers, to compute vectors.
    """

    name: RuntimeName
    title: str
    refusal: Callable[[Encoder], str | None]
    script: str
    opening: Callable[[Path, Parity], str]
    write: Callable[[PortableEncoder, Path, str], None] = write_nothing
    options: Callable[[Path, Parity], Mapping[str, Option]] = lambda out, parity: {}
    python: Callable[[], str | None] = lambda: sys.executable
    weights: tuple[str, ...] = ("fp32",)
    least_cosine: Callable[[Parity, str], float | None] = lambda parity, weights: None
    simulated: str | None = None
    caution: Callable[[Encoder], str | None] | None = None
    usage: Callable[[PortableEncoder], str] | None = None
    reads_stock: bool = False
    files: tuple[str, ...] = ()
    open: Callable[[Path], OpenedRuntime] | None = None

    def check(self, encoder: Encoder) -> None:
        """Raise `ValueError` if the runtime cannot reproduce an encoder in its fixed form."""
        reason = self.refusal(encoder)
        if reason:
            raise ValueError(f"{self.title} cannot reproduce this encoder: {reason}")
