"""Folders and files: encoders, Sentence-Transformers, graphs in ONNX Runtime and OpenVINO, GGUF in llama.cpp."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from embrew.export.fresh_process import NOT_HERE
from embrew.export.runtimes.llama_cpp import PYTHON, interpreter
from embrew.parity import Kind
from embrew.parity.measuring import Refused, Runtime
from embrew.parity.reference import Prompt
from embrew.runtimes.graph import OUTPUT
from embrew.runtimes.openvino import Program, openvino
from embrew.stock import open_stock

PATTERNS: dict[Kind, tuple[str, ...]] = {
    "embrew": ("embrew.json", "run.json"),
    "sentence-transformers": ("modules.json",),
    "openvino": ("*.xml", "openvino/*.xml"),
    "onnx": ("*.onnx", "onnx/*.onnx"),
    "llama.cpp": ("*.gguf",),
}
"""Files by which a folder or file is known; of an export for several runtimes, Sentence-Transformers first."""
LLAMA_CPP = """
import json, sys
import llama_cpp
path, threads = sys.argv[1], int(sys.argv[2])
about = llama_cpp.Llama(model_path=path, vocab_only=True, verbose=False).metadata
limit = int(about[about["general.architecture"] + ".context_length"])
sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), max(limit, 2048))
options = {"n_threads": threads, "n_threads_batch": threads, "n_seq_max": 32, "kv_unified": True}
model = llama_cpp.Llama(model_path=path, embedding=True, verbose=False, **sizes, **options)
print(json.dumps({"version": llama_cpp.__version__}), flush=True)
for line in sys.stdin:
    texts = json.loads(line)
    ids = [model.tokenize(text.encode()) for text in texts]
    longest = max(map(len, ids))
    if longest > limit:
        answer = {"refused": f"a text has {longest} tokens, and the file allows {limit}"}
    else:
        answer = {"ids": ids, "vectors": model.embed(texts, normalize=True, truncate=False)}
    print(json.dumps(answer), flush=True)
"""


def open_folder(name: str, *, kind: Kind | None) -> Runtime:
    """Open a folder or file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of no kind, or cannot be opened.
    """
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {name}; give one, or an address that begins with http://")
    if kind is not None and kind not in PATTERNS:
        raise ValueError(f"--kind {kind} is a server, and {name} is no address; give http://HOST:PORT")
    for each, patterns in PATTERNS.items() if kind is None else ((kind, PATTERNS[kind]),):
        if path.is_file():
            files = [path] if kind or any(path.match(pattern) for pattern in patterns) else []
        else:
            files = [file for pattern in patterns for file in sorted(path.glob(pattern))]
        if files or kind == "sentence-transformers":
            return _open(name, each, files)
    expected = "a folder of Sentence-Transformers, embrew or OpenVINO, a .gguf or .onnx file, or an address"
    what = f"has no {' or '.join(PATTERNS[kind])}" if kind else "is nothing that vectors can be compared with"
    raise ValueError(f"{path} {what}; give {expected}")


def _open(name: str, kind: Kind, files: list[Path]) -> Runtime:
    if kind == "embrew":
        return EncoderFolder(name, Encoder.from_pretrained(name, merge_adapter=True))
    if kind == "sentence-transformers":
        return SentenceTransformersFolder(name, open_stock(name))
    if len(files) > 1:
        raise ValueError(f"{name} has {', '.join(file.name for file in files)}; give one file")
    return LlamaCpp(files[0]) if kind == "llama.cpp" else Graph(files[0], kind)


class EncoderFolder(Runtime):
    """A folder of an encoder, whose template puts prompts where they belong, so that they are given by name only.

    Learned tokens have other ids than in an export, so that ids are not compared.

    Args:
        name: the folder.
        model: the opened model, with the encode methods of Sentence-Transformers.
    """

    by_words, by_name = False, True
    software = "embrew"

    def __init__(self, name: str, model: Any) -> None:
        self.name, self.model = f"{name} ({self.software})", model

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors by the method that applies a prompt, in one batch."""
        options: dict[str, Any] = {"batch_size": len(texts), "show_progress_bar": False}
        if prompt is None:
            return self.model.encode(list(texts), prompt="", **options)
        encode = getattr(self.model, prompt.method)
        if prompt.method != "encode" or prompt.is_default:
            return encode(list(texts), **options)
        try:
            return encode(list(texts), prompt_name=prompt.name, **options)
        except ValueError as error:
            raise Refused(str(error)) from error


class SentenceTransformersFolder(EncoderFolder):
    """A folder that plain Sentence-Transformers opens."""

    by_words = True
    reads = ("sentence-transformers", "vllm", "tei")
    software = "Sentence-Transformers"

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by the model's tokenizer."""
        limit = self.model.max_seq_length
        ids = self.model.tokenizer(text, truncation=limit is not None, max_length=limit)["input_ids"]
        return [int(i) for i in ids]


class Graph(Runtime):
    """A graph from token ids to vectors, and the tokenizer beside it or one folder above.

    Args:
        model: the graph's file.
        kind: of what computes it, on the CPU and in float32.

    Raises:
        ValueError: it is not installed, cannot read the file, or there is no tokenizer; the graph has another output.
    """

    def __init__(self, model: Path, kind: Kind) -> None:
        title, opened = {"onnx": ("ONNX Runtime", _open_onnx), "openvino": ("OpenVINO", _open_openvino)}[kind]
        try:
            software, self.run, self.inputs, outputs = opened(model)
        except ImportError:
            raise ValueError(f'{model} needs {title}: pip install "embrew[{kind}]"') from None
        except Exception as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{title} cannot open {model}: {first_line[:300]}") from error
        if OUTPUT not in outputs:
            raise ValueError(
                f"{model} has the outputs {', '.join(outputs)}; one named {OUTPUT} is needed, with one vector per "
                "text: compare with a graph that embrew export made"
            )
        folder = next((each for each in model.parents[:2] if (each / "tokenizer.json").is_file()), None)
        if folder is None:
            raise ValueError(f"{model} has no tokenizer.json beside it or one folder above; copy it there")
        self.name, self.reads = f"{model} ({software})", (kind,)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors of texts in one batch, padded to the longest; a graph has no prompts."""
        arrays = self.tokenizer(list(texts), truncation=True, padding=True, return_tensors="np")
        return self.run({name: arrays[name].astype(np.int64) for name in self.inputs if name in arrays})

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by the tokenizer."""
        return list(self.tokenizer(text, truncation=True)["input_ids"])


def _open_onnx(model: Path) -> tuple[str, Callable[[dict[str, np.ndarray]], object], list[str], list[str]]:
    """Return software, run, and names of inputs and outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    inputs, outputs = ([node.name for node in nodes] for nodes in (session.get_inputs(), session.get_outputs()))
    return f"ONNX Runtime {onnxruntime.__version__}", lambda arrays: session.run([OUTPUT], arrays)[0], inputs, outputs


def _open_openvino(model: Path) -> tuple[str, Callable[[dict[str, np.ndarray]], object], list[str], list[str]]:
    """Return software, run, and names of inputs and outputs."""
    compiled = Program(model, bfloat16=False).compiled
    inputs, outputs = ([port.get_any_name() for port in ports] for ports in (compiled.inputs, compiled.outputs))
    software = f"OpenVINO {openvino().__version__.partition('-')[0]}"
    return software, lambda arrays: compiled(arrays)[OUTPUT], inputs, outputs


class LlamaCpp(Runtime):
    """A GGUF file in llama-cpp-python, in a process that stays open; vectors are normalised, as its server does.

    Args:
        path: the file.

    Raises:
        ValueError: llama-cpp-python is not at hand, or cannot open the file.
    """

    reads = ("llama.cpp",)

    def __init__(self, path: Path) -> None:
        python = interpreter()
        if python is None:
            raise ValueError(
                f"{path} needs llama-cpp-python: install it, or set {PYTHON} to the Python interpreter of an "
                "environment that has it"
            )
        self.path = path
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (it lives as long as the process)
        command, pipe = [python, "-c", NOT_HERE + LLAMA_CPP, str(path), str(torch.get_num_threads())], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)
        self.name = f"{path} (llama-cpp-python {self._read()['version']})"

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors of texts, which llama.cpp computes together where they fit into a batch; it has no prompts."""
        return self._answer(texts)["vectors"]

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by llama.cpp's tokenizer."""
        return [int(i) for i in self._answer([text])["ids"][0]]

    def _answer(self, texts: Sequence[str]) -> dict[str, Any]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, and says why
            self.process.stdin.write(json.dumps(list(texts)) + "\n")
            self.process.stdin.flush()
        answer = self._read()
        if "refused" in answer:
            raise Refused(f"{self.path.name}: {answer['refused']}")
        return answer

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines()
            raise ValueError(f"llama.cpp cannot run {self.path}: {' '.join(lines[-2:]) or 'it gave no message'}")
        return json.loads(line)
