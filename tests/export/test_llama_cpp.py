"""llama-cpp-python opens what was exported and gives the encoder's token ids and vectors.

These tests need llama-cpp-python, here or where the variable EMBREW_LLAMA_CPP names a Python interpreter.
"""

from __future__ import annotations

import json
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.check_passport import distances
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.export.fresh_process import verify_runtime
from embrew.runtimes import gguf_model, llama_cpp
from embrew.runtimes.llama_cpp import PYTHON, interpreter
from embrew.runtimes.registry import RUNTIMES
from tests.export.llama_cpp_encoders import FORMS, MODELS, encoder_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(interpreter() is None, reason=f"install llama-cpp-python, or set {PYTHON} to a Python with it"),
]
NFD, NFC = "gro\u0308ßerer Cafe\u0301-Tisch", "größerer Café-Tisch"
SPECIAL = "ends with </s> <s> <|memory_0|> <unk> [INST] <|im_end|>"
RUN = """
import json, sys, llama_cpp
sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), 64)
model = llama_cpp.Llama(model_path=sys.argv[1], embedding=True, verbose=False, n_threads=1, **sizes)
texts = json.loads(sys.argv[2])
ids = [model.tokenize(text.encode()) for text in texts]
vectors = [model.embed(t, normalize=True, truncate=False) if len(i) <= 64 else None for t, i in zip(texts, ids)]
print(json.dumps({"ids": ids, "vectors": vectors}))
"""


def exported(encoder: Encoder, folder: Path, weights: str = "fp32") -> tuple[Path, dict[str, Any]]:
    export_encoder(encoder, folder, runtimes=["llama.cpp"], weights=weights)
    (path,) = folder.glob("*.gguf")
    return path, json.loads((folder / "parity.json").read_text())


def run_gguf(path: Path, texts: list[str]) -> tuple[list[list[int]], list[Any]]:
    """Token ids and vectors of texts, in llama-cpp-python with a limit of 64 tokens."""
    command = [str(interpreter()), "-c", RUN, str(path), json.dumps(texts)]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return answer["ids"], [None if vector is None else np.array(vector) for vector in answer["vectors"]]


def prepared(text: str, steps: list[str]) -> str:
    text = unicodedata.normalize("NFC", text) if "nfc" in steps else text
    return text[1:] if "without one leading space" in steps and text.startswith((" ", "\u2581")) else text


def own_ids(encoder: Encoder, text: str) -> list[int]:
    return list(encoder.template.rows([text], max_length=encoder.max_seq_length)[0].ids)


@pytest.mark.parametrize("form", FORMS)
def test_nano(form, tmp_path):
    found = exported(encoder_of("nano", form, tmp_path), tmp_path / "out")[1]["verified"]["llama.cpp"]
    assert found["run"].startswith("llama.cpp ") and found["texts"] >= 48 and found["beyond_limit"] == 6
    assert found["lowest_cosine"] >= 0.9999
    found = exported(encoder_of("nano", form, tmp_path), tmp_path / "half", "fp16")[1]["verified"]["llama.cpp"]
    assert found["lowest_cosine"] >= 0.999


@pytest.mark.usefixtures("real_tokenizers")
@pytest.mark.parametrize("model", [name for name in MODELS if name != "nano"])
def test_every_architecture_with_a_real_tokenizer(model, tmp_path):
    encoder = encoder_of(model, "last", tmp_path)
    path, parity = exported(encoder, tmp_path / "out")
    assert parity["verified"]["llama.cpp"]["lowest_cosine"] >= 0.9999
    texts = [SPECIAL, " one space", "   three spaces", "tab\tand\n\n\nlines", "12345 3.14 ١٢٣", "don't DON'T it's", NFC]
    steps = parity["llama.cpp"]["text_preparation"]
    answer = run_gguf(path, [prepared(text, steps) for text in texts])
    for text, ids, vector in zip(texts, *answer, strict=True):
        assert ids == own_ids(encoder, text), text
        assert vector is not None and distances(encoder.encode(text), np.asarray(vector)) <= 1e-4, text


@pytest.fixture
def real_tokenizers() -> None:
    import os

    if "EMBREW_TOKENIZERS" not in os.environ:
        pytest.skip("set EMBREW_TOKENIZERS to the folder of tokenizers to run this test")


def test_what_is_wrong_is_found(tmp_path, monkeypatch):
    encoder = encoder_of("nano", "last", tmp_path)

    def fails(words: str, module: Any, name: str, value: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            with pytest.raises(RuntimeError, match=words):
                exported(encoder, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    write = llama_cpp.write_vocabulary
    fails("other vectors .*cosine", llama_cpp, "POOLING", {"mean": 1, "cls": 2, "last": 1})
    fails("other vectors .*cosine", gguf_model, "interleaved", lambda value, heads: value)
    for end in ("first", "last"):
        fails("other token ids", llama_cpp, "write_vocabulary", lambda *a, end=end, **k: write(*a, **{**k, end: None}))


def test_other_files(tmp_path):
    encoder = encoder_of("nano", "last", tmp_path)
    path, parity = exported(encoder, tmp_path / "out")
    other, _ = exported(encoder_of("nano", "mean, causal", tmp_path), tmp_path / "other")
    whole = path.read_bytes()
    path.write_bytes(other.read_bytes())
    with pytest.raises(RuntimeError, match="other token ids"):
        verify_runtime(RUNTIMES["llama.cpp"], tmp_path / "out", parity, "cpu")
    for broken in (whole[: len(whole) // 2], b"GGUF", whole.replace(b"llama", b"lemma")):
        path.write_bytes(broken)
        with pytest.raises(RuntimeError, match="llama.cpp cannot open the exported folder"):
            verify_runtime(RUNTIMES["llama.cpp"], tmp_path / "out", parity, "cpu")
