"""Run a GGUF file in llama-cpp-python, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embrew.export.fresh_process import NOT_HERE, run_fresh

PYTHON = "EMBREW_LLAMA_CPP"
"""Environment variable: the Python interpreter that has llama-cpp-python; by default, this one."""
RUN = """
import json, sys
import llama_cpp
path, limit, texts, out = sys.argv[1], int(sys.argv[2]), json.load(open(sys.argv[3])), sys.argv[4]
threads = {"n_threads": int(sys.argv[5]), "n_threads_batch": int(sys.argv[5])}
sizes = {"n_ctx": limit, "n_batch": limit, "n_ubatch": limit}
model = llama_cpp.Llama(model_path=path, embedding=True, verbose=False, **sizes, **threads)
ids, vectors = [], []
for text in texts:
    ids.append(model.tokenize(text.encode()))
    fits = 0 < len(ids[-1]) <= limit
    vectors.append(model.embed(text, normalize=True, truncate=False) if fits else None)
json.dump({"ids": ids, "vectors": vectors, "version": llama_cpp.__version__}, open(out, "w"))
"""


@dataclass(frozen=True)
class Run:
    """What llama-cpp-python makes of texts.

    Attributes:
        ids: token ids of each text.
        vectors: `(hidden)` of unit length, of each; None: the text has more tokens than the limit, or none.
        version: of llama-cpp-python.
    """

    ids: list[list[int]]
    vectors: list[np.ndarray | None]
    version: str


def interpreter() -> str | None:
    """Return the Python interpreter that has llama-cpp-python; None: there is none."""
    return _with_llama_cpp(os.environ.get(PYTHON) or sys.executable)


def run_gguf(path: Path, texts: Sequence[str], *, limit: int) -> Run:
    """Run texts, one by one, through a GGUF file; `limit` is the largest number of tokens.

    Raises:
        RuntimeError: llama.cpp does not open the file or does not run it.
        ValueError: llama-cpp-python is not at hand.
    """
    python = interpreter()
    if python is None:
        raise ValueError(
            "llama-cpp-python is not installed here; install it, or set "
            f"{PYTHON} to the Python interpreter of an environment that has it"
        )
    with tempfile.TemporaryDirectory(prefix="embrew-gguf-") as scratch:
        given, found = Path(scratch) / "texts.json", Path(scratch) / "found.json"
        given.write_text(json.dumps(list(texts)))
        threads = str(torch.get_num_threads())
        done = run_fresh(RUN, str(path), str(limit), str(given), str(found), threads, python=python)
        if done.returncode:
            raise RuntimeError(f"llama.cpp cannot run {path.name}: {_last_lines(done.stderr)}")
        answer: dict[str, Any] = json.loads(found.read_text())
    vectors = [None if vector is None else np.array(vector, dtype=np.float32) for vector in answer["vectors"]]
    return Run(answer["ids"], vectors, answer["version"])


@lru_cache
def _with_llama_cpp(python: str) -> str | None:
    found = "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)"
    try:
        return None if subprocess.run([python, "-c", NOT_HERE + found], check=False).returncode else python
    except OSError as error:
        raise ValueError(f"{PYTHON}={python}: no such interpreter ({error})") from error


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-8:])
