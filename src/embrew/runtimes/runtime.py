"""What a runtime is: which encoders it can reproduce, how its files are written, verified and opened.

`embrew parity` compares opened runtimes, which turn texts into vectors.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from transformers import AutoTokenizer

from embrew.check_passport import as_vectors
from embrew.encoder import Encoder
from embrew.runtimes.graph import OUTPUT
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.reference import Parity
from embrew.runtimes.stock_folder import Reading
from embrew.text_encoder import TextEncoder


class Refused(ValueError):
    """A runtime refuses a text or a prompt, and says so; others may be given to it."""


@dataclass(frozen=True)
class Prompt:
    """What precedes a text.

    Attributes:
        name: name of the prompt; None: the text has none.
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


class OpenedRuntime:
    """Software that turns texts into vectors.

    Attributes:
        name: name for users.
        by_words: whether a prompt can be put before a text as words.
        by_name: whether it has prompts of its own, which a request names.
        reads: names of the runtimes of `embrew export` whose files it may run.
    """

    name: str
    by_words, by_name = True, False
    reads: tuple[str, ...] = ()

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return one vector per text, of one request.

        Args:
            texts: what is sent.
            prompt: prompt of the runtime, which is named; None: no prompt is applied.

        Raises:
            Refused: the runtime refuses one of the texts, or has no prompt of this name.
            ValueError: it gives no vectors; the message says why and what to do.
        """
        raise NotImplementedError

    def token_ids(self, text: str) -> list[int] | None:
        """Return the token ids of a text with all that the runtime adds; None: it does not tell them."""
        return None

    def vectors(self, texts: Sequence[str], prompt: Prompt | None = None) -> np.ndarray:
        """Return what `embed` does as float32 `(texts, dimensions)`.

        Raises:
            Refused: as `embed`.
            ValueError: as `embed`; or it is not one vector of finite numbers per text.
        """
        vectors = self.embed(texts, prompt)
        try:
            return as_vectors(vectors, texts)
        except ValueError as error:
            raise ValueError(f"{self.name} gives {error}") from None


class OpenedModel(OpenedRuntime):
    """A model with the encode methods of Sentence-Transformers, which apply prompts, so that these are named.

    Args:
        folder: folder of the model.
        model: the opened model.
        software: name of what opened it.
    """

    by_words, by_name = False, True

    def __init__(self, folder: str | Path, model: TextEncoder, software: str) -> None:
        self.name, self.model = f"{folder} ({software})", model

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors by the method that applies a prompt, in one batch."""
        method = self.model.encode if prompt is None else getattr(self.model, prompt.method)
        encode = partial(method, list(texts), batch_size=len(texts), show_progress_bar=False)
        if prompt is None:
            return encode(prompt="")
        if prompt.method != "encode" or prompt.is_default:
            return encode()
        try:
            return encode(prompt_name=prompt.name)
        except ValueError as error:
            raise Refused(str(error)) from error


class CompiledGraph(NamedTuple):
    """A graph from token ids to vectors, ready to run on the CPU in float32.

    Attributes:
        software: name and version of what runs it.
        run: function from arrays by input name to vectors.
        inputs: names of the graph's inputs.
        outputs: names of the graph's outputs.
    """

    software: str
    run: Callable[[Mapping[str, np.ndarray]], object]
    inputs: list[str]
    outputs: list[str]


class OpenedGraph(OpenedRuntime):
    """A graph from token ids to vectors, and the tokenizer beside it or one folder above.

    Args:
        path: file of the graph.
        runtime: name of the runtime, and of the extra that installs it.
        title: name of the runtime in messages.
        open_graph: function that reads the file.

    Raises:
        ValueError: the runtime is not installed, cannot read the file, or there is no tokenizer; the graph has another
            output.
    """

    def __init__(self, path: Path, runtime: str, title: str, open_graph: Callable[[Path], CompiledGraph]) -> None:
        try:
            self.graph = open_graph(path)
        except ImportError:
            raise ValueError(f'{path} needs {title}: pip install "embrew[{runtime}]"') from None
        except Exception as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{title} cannot open {path}: {first_line[:300]}") from error
        if OUTPUT not in self.graph.outputs:
            raise ValueError(
                f"{path} has the outputs {', '.join(self.graph.outputs)}; one named {OUTPUT} is needed, with one "
                "vector per text: compare with a graph that embrew export made"
            )
        folder = next((parent for parent in path.parents[:2] if (parent / "tokenizer.json").is_file()), None)
        if folder is None:
            raise ValueError(f"{path} has no tokenizer.json beside it or one folder above; copy it there")
        self.name, self.reads = f"{path} ({self.graph.software})", (runtime,)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors of texts in one batch, padded to the longest; a graph has no prompts."""
        arrays = self.tokenizer(list(texts), truncation=True, padding=True, return_tensors="np")
        return self.graph.run({name: arrays[name].astype(np.int64) for name in self.graph.inputs if name in arrays})

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by the tokenizer."""
        return list(self.tokenizer(text, truncation=True)["input_ids"])


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
