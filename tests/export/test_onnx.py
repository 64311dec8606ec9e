"""An export for ONNX gives the encoder's ids and vectors with ONNX Runtime and the tokenizers library alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.export.fresh_process import verify_runtime
from embrew.runtimes import onnx as target
from tests.conftest import SENTENCES
from tests.hard_texts import HARD_TEXTS, REAL_TOKENIZERS, real_tokenizer_folder
from tests.journeys import tiny_encoder, tiny_lm

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
TEXTS = [*SENTENCES, "", "a", "ends with </s> and <|memory_0|>", "long " * 200]


class OnnxRuntime:
    """The documented use of a folder: tokenizer.json, padding on the right, one session."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = True
        limit = json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]
        self.tokenizer.enable_truncation(limit)
        self.session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")

    def __call__(self, texts: Sequence[str], *, padding: int = 0) -> np.ndarray:
        rows = [self.tokenizer.encode(text).ids for text in texts]
        width = max(map(len, rows)) + padding
        ids = np.array([row + [3] * (width - len(row)) for row in rows])
        mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        return self.session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]


@pytest.fixture
def encoder(make_encoder) -> Encoder:
    prompts = {"query": "find: ", "document": ""}
    return make_encoder(lora={}, prompts=prompts, max_length=64, template="{instruction}{text}{memory}{eos}")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("onnx") / "export"


@pytest.fixture
def folder(encoder, exported) -> Path:
    """One export, verified in a fresh process, for all tests here."""
    if not exported.exists():
        export_encoder(encoder, exported, runtimes=["onnx"], num_layers=1)
    return exported


def test_padded_alone_long_empty_and_special_texts(encoder, folder):
    run = OnnxRuntime(folder)
    wanted = encoder.encode(TEXTS, num_layers=1)
    assert np.abs(run(TEXTS) - wanted).max() < 1e-5
    assert np.abs(run(TEXTS, padding=9) - wanted).max() < 1e-5
    assert np.abs(np.concatenate([run([text]) for text in TEXTS]) - wanted).max() < 1e-5
    assert np.abs(run([f"find: {text}" for text in TEXTS]) - encoder.encode_query(TEXTS, num_layers=1)).max() < 1e-5
    one = {"input_ids": np.array([[5]]), "attention_mask": np.array([[1]])}  # length 1: no memory token, all weight 0
    assert run.session.run(None, one)[0].shape == (1, encoder.get_embedding_dimension())


def test_names_and_sizes_are_those_that_clients_ask_for(folder):
    session = OnnxRuntime(folder).session
    assert [(value.name, value.shape, value.type) for value in session.get_inputs()] == [
        ("input_ids", ["batch", "tokens"], "tensor(int64)"),
        ("attention_mask", ["batch", "tokens"], "tensor(int64)"),
    ]
    assert [(value.name, value.shape) for value in session.get_outputs()] == [("sentence_embedding", ["batch", 32])]
    assert json.loads((folder / "parity.json").read_text())["runtimes"] == {"onnx": "fp32"}
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert not (folder / "modules.json").exists()


def test_its_card_says_how_onnx_runtime_opens_it(encoder, folder):
    """The code of the card is run as it stands."""
    card = (folder / "README.md").read_text()
    assert "SentenceTransformer(" not in card and "library_name: embrew" in card
    code = card.split("```python\n")[1].split("```")[0].replace("PATH", str(folder))
    names: dict[str, Any] = {}
    exec(code, names)
    assert np.abs(names["vectors"] - encoder.encode_query(["…"], num_layers=1)).max() < 1e-5


def test_a_changed_file_is_found(folder, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    parity = json.loads((changed / "parity.json").read_text())
    verify_runtime(target.ONNX, changed, parity, "cpu")
    model = onnx.load(changed / "onnx" / "model.onnx")
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2 and tensor.data_type == 1)
    values = onnx.numpy_helper.to_array(weight).copy()
    values[:, 0] += 0.1
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(model, changed / "onnx" / "model.onnx")
    with pytest.raises(RuntimeError, match=r"ONNX Runtime gives other vectors .*\(prompt query"):
        verify_runtime(target.ONNX, changed, parity, "cpu")
    (changed / "onnx" / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(RuntimeError, match="ONNX Runtime cannot open the exported folder"):
        verify_runtime(target.ONNX, changed, parity, "cpu")
    shutil.copy(folder / "onnx" / "model.onnx", changed / "onnx" / "model.onnx")
    tokenizer = json.loads((changed / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (changed / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(RuntimeError, match="ONNX Runtime gives other token ids"):
        verify_runtime(target.ONNX, changed, parity, "cpu")


def test_large_weights_have_a_file_of_their_own(folder, tmp_path, monkeypatch):
    import onnx_ir

    monkeypatch.setattr(target, "LARGEST", 1000)
    target.save(onnx_ir.load(folder / "onnx" / "model.onnx"), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx_data").stat().st_size > 50_000
    given = {"input_ids": np.array([[5, 6]]), "attention_mask": np.array([[1, 1]])}
    both = [
        onnxruntime.InferenceSession(place / "model.onnx").run(None, given)[0] for place in (folder / "onnx", tmp_path)
    ]
    assert np.array_equal(*both)


def test_bad_input(encoder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="weights='int8' for onnx; choose from fp32"):
        export_encoder(encoder, tmp_path / "export", runtimes=["onnx"], weights="int8")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r'onnxscript not installed; install with: pip install "embrew\[onnx\]"'):
        export_encoder(encoder, tmp_path / "export", runtimes=["onnx"])
    assert not list(tmp_path.iterdir())


def compare(encoder: Encoder, folder: Path, *, allowed: float = 1e-5, **options: Any) -> None:
    export_encoder(encoder, folder, runtimes=["onnx"], **options)
    texts = [text for text in (*TEXTS, *HARD_TEXTS) if text]
    assert np.abs(OnnxRuntime(folder)(texts) - encoder.encode(texts)).max() < allowed


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_tokenizers_of_public_models(name, tmp_path):
    family = {"pythia": "gpt-neox", "phi2": "phi"}.get(name, name)
    tokenizer = AutoTokenizer.from_pretrained(real_tokenizer_folder(name))
    compare(tiny_encoder(tiny_lm(family, tokenizer, tmp_path / "lm")), tmp_path / "export")
