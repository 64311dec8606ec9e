"""GGUF files in llama-cpp-python, in a process of its own that stays open."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embrew.export.fresh_process import NOT_HERE
from embrew.export.runtimes.llama_cpp import PYTHON, interpreter
from embrew.parity.reference import Prompt
from embrew.parity.runtimes.runtime import Refused, checked

ANSWER = """
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


class LlamaCpp:
    """A GGUF file, whose vectors llama.cpp normalises, as its server does.

    Args:
        path: the file.
        python: interpreter that has llama-cpp-python.
    """

    by_words, by_name = True, False
    reads: tuple[str, ...] = ("llama.cpp",)

    def __init__(self, path: Path, python: str) -> None:
        self.path = path
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (it lives as long as the process)
        self.process = subprocess.Popen(
            [python, "-c", NOT_HERE + ANSWER, str(path), str(torch.get_num_threads())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.name = f"{path} (llama-cpp-python {self._read()['version']})"

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts, which llama.cpp computes together where they fit into a batch."""
        return checked(self._ask(texts)["vectors"], texts, self.name)

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """A GGUF file has no prompts."""
        raise NotImplementedError

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by llama.cpp's tokenizer."""
        try:
            return [int(i) for i in self._ask([text])["ids"][0]]
        except Refused:
            return None

    def _ask(self, texts: Sequence[str]) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(list(texts)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended, and says why
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
            said = self.errors.read().strip().splitlines()
            raise ValueError(f"llama.cpp cannot run {self.path}: {' '.join(said[-2:]) or 'it gave no message'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def open_gguf(path: Path) -> LlamaCpp:
    """Open a GGUF file in llama-cpp-python.

    Raises:
        ValueError: llama-cpp-python is not at hand, or cannot open the file.
    """
    python = interpreter()
    if python is None:
        raise ValueError(
            f"{path} needs llama-cpp-python: install it, or set {PYTHON} to the Python interpreter of an environment "
            "that has it"
        )
    return LlamaCpp(path, python)
