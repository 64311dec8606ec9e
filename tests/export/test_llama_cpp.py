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

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.export.fresh_process import cosines, verify_runtime
from embrew.export.runtimes import RUNTIMES, gguf_model, llama_cpp
from embrew.export.runtimes.llama_cpp import PYTHON, interpreter
from embrew.model.contexts import Context, start
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.conftest import SENTENCES
from tests.export.llama_cpp_encoders import FORMS, MODELS, encoder_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(interpreter() is None, reason=f"install llama-cpp-python, or set {PYTHON} to a Python with it"),
]
NFD, NFC = "gro\u0308ßerer Cafe\u0301-Tisch", "größerer Café-Tisch"
SPECIAL = "ends with </s> <s> <|memory_0|> <unk> [INST] <|im_end|>"
AS_SERVER = """
import json, sys, llama_cpp
model = llama_cpp.Llama(model_path=sys.argv[1], vocab_only=True, verbose=False)
print(json.dumps(model.tokenize(sys.argv[2].encode(), special=True)))
"""  # llama-server and llama-embedding look for special tokens in texts; embed of llama-cpp-python does not
RUN = """
import json, sys, llama_cpp
sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), 64)
model = llama_cpp.Llama(model_path=sys.argv[1], embedding=True, verbose=False, n_threads=1, **sizes)
texts = json.loads(sys.argv[2])
ids = [model.tokenize(text.encode()) for text in texts]
vectors = [model.embed(t, normalize=True, truncate=False) if len(i) <= 64 else None for t, i in zip(texts, ids)]
print(json.dumps({"ids": ids, "vectors": vectors}))
"""
CUT = """
import json, sys, llama_cpp
path, limit = sys.argv[1], int(sys.argv[3])
model = llama_cpp.Llama(model_path=path, embedding=True, verbose=False, n_ctx=limit, n_batch=limit, n_threads=1)
print(json.dumps(model.embed(sys.argv[2], normalize=True)))
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
def test_nano(form: str, tmp_path: Path) -> None:
    found = exported(encoder_of("nano", form, tmp_path), tmp_path / "out")[1]["verified"]["llama.cpp"]
    assert found["run"].startswith("llama.cpp ") and found["texts"] >= 48 and found["beyond_limit"] == 6
    assert found["lowest_cosine"] >= 0.9999
    found = exported(encoder_of("nano", form, tmp_path), tmp_path / "half", "fp16")[1]["verified"]["llama.cpp"]
    assert found["lowest_cosine"] >= 0.999


@pytest.mark.usefixtures("real_tokenizers")
@pytest.mark.parametrize("model", [name for name in MODELS if name != "nano"])
def test_every_architecture_with_a_real_tokenizer(model: str, tmp_path: Path) -> None:
    encoder = encoder_of(model, "last", tmp_path)
    path, parity = exported(encoder, tmp_path / "out")
    assert parity["verified"]["llama.cpp"]["lowest_cosine"] >= 0.9999
    texts = [SPECIAL, " one space", "   three spaces", "tab\tand\n\n\nlines", "12345 3.14 ١٢٣", "don't DON'T it's", NFC]
    steps = parity["llama.cpp"]["text_preparation"]
    answer = run_gguf(path, [prepared(text, steps) for text in texts])
    for text, ids, vector in zip(texts, *answer, strict=True):
        assert ids == own_ids(encoder, text), text
        assert vector is not None and cosines(encoder.encode(text), vector) >= 0.9999, text


@pytest.fixture
def real_tokenizers() -> None:
    import os

    if "EMBREW_TOKENIZERS" not in os.environ:
        pytest.skip("set EMBREW_TOKENIZERS to the folder of tokenizers to run this test")


def test_texts(tmp_path: Path) -> None:
    """What the runtime makes of decomposed characters, names of special tokens and texts beyond the limit."""
    encoder = encoder_of("nano", "one memory token", tmp_path)
    path, parity = exported(encoder, tmp_path / "out")
    memory = max(id for text in parity["cases"][0]["texts"] for id in text["ids"])
    own = [[memory if i >= 8192 else i for i in own_ids(encoder, text)] for text in (NFD, NFC, SPECIAL)]
    assert own[0] == own[1], "this encoder normalises to NFC"
    ids, vectors = run_gguf(path, [NFD, NFC, SPECIAL, "words and more " * 40])
    assert ids[0] != own[0] and ids[1:3] == own[1:], "llama.cpp does not; a client has to"
    similarity = cosines(encoder.encode(NFD), vectors[0])
    assert similarity < 0.99 < 0.9999 <= cosines(encoder.encode(NFD), vectors[1]), similarity
    assert parity["llama.cpp"]["text_preparation"] == ["nfc"] and "to NFC" in (tmp_path / "out/README.md").read_text()
    as_server = subprocess.run(
        [str(interpreter()), "-c", AS_SERVER, str(path), SPECIAL], capture_output=True, text=True, check=True
    )
    assert json.loads(as_server.stdout) == own[2], "names of special tokens stay text where llama.cpp looks for them"
    assert vectors[3] is None and len(ids[3]) > 64 and ids[3][-1] == memory
    long = "words and more " * 40
    cut = subprocess.run(
        [str(interpreter()), "-c", CUT, str(path), long, "64"], capture_output=True, text=True, check=True
    )
    assert cosines(encoder.encode(long), np.array(json.loads(cut.stdout))) < 0.99, "the memory token was cut off"


@pytest.mark.parametrize("case", ["context", "bfloat16", "cut", "unnormalised"])
def test_other_encoders(case: str, tmp_path: Path) -> None:
    options = {
        "context": {"demonstrations": Demonstrations(), "max_length": 128},
        "bfloat16": {"dtype": "bfloat16"},
        "unnormalised": {"normalize": False},
    }
    encoder = encoder_of("nano", "last", tmp_path, **options.get(case, {}))
    if case == "context":
        start(encoder)
        encoder.add_context("find", Context("Find it: ", (Demonstration("fox", SENTENCES[0]),)))
    names = [*encoder.prompts, None, *encoder.contexts]
    export_encoder(
        encoder, tmp_path / "out", runtimes=["llama.cpp"], weights="fp32", num_layers=3 if case == "cut" else None
    )
    found = json.loads((tmp_path / "out" / "parity.json").read_text())["verified"]["llama.cpp"]
    assert found["texts"] + found["beyond_limit"] >= 17 * len(names)
    assert found["lowest_cosine"] >= (0.999 if case == "bfloat16" else 0.9999)


def test_what_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_other_files(tmp_path: Path) -> None:
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
