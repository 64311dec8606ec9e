"""Sentence-Transformers folders that were made to run code or to unpickle, when they are opened by name."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from embrew.opening import open_model
from tests.conftest import SENTENCES

EVIL = """
from pathlib import Path
from transformers import BertConfig, BertModel
from sentence_transformers.base.modules import Normalize
Path({marker!r}).touch()
class Own(Normalize):
    pass
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


class Payload:
    """What makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def made(encoder_folder, tmp_path_factory) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder = tmp_path_factory.mktemp("stock") / "stock"
    parts = [Transformer(str(encoder_folder("bert"))), Pooling(32, "mean"), Dense(32, 8)]
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def stock(made, tmp_path, monkeypatch) -> Callable[[], Path]:
    """A copy to be changed. Questions whether code may be run are answered with yes."""
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda: Path(shutil.copytree(made, tmp_path / "stock"))


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def modules(folder: Path, place: int, **values: str) -> None:
    path = folder / "modules.json"
    listed = json.loads(path.read_text())
    listed[place] |= values
    path.write_text(json.dumps(listed))


def pickled(folder: Path, marker: Path) -> None:
    """Weights as `torch.save` writes them, with a payload; the safetensors file is removed."""
    torch.save({**load_file(folder / "model.safetensors"), "payload": Payload(marker)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def foreign_class(folder, marker):
    (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    modules(folder, 2, type="evil.Own")


def class_of_a_library(folder, marker):
    modules(folder, 2, type="os.path.join")


def class_that_the_library_imports(folder, marker):
    modules(folder, 2, type="sentence_transformers.base.model.pickle")


def code_in_the_configuration(folder, marker):
    (folder / "evil_config.py").write_text(EVIL.format(marker=str(marker)))
    auto_map = {"AutoConfig": "evil_config.OwnConfig", "AutoModel": "evil_config.OwnModel"}
    edit(folder / "config.json", model_type="own", auto_map=auto_map)


def module_elsewhere(folder, marker):
    modules(folder, 2, path="../elsewhere")


def pickled_weights(folder, marker):
    pickled(folder, marker)


def pickled_module(folder, marker):
    pickled(folder / "2_Dense", marker)


def pickled_in_an_index(folder, marker):
    pickled(folder, marker)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))


def pickled_in_an_index_of_a_variant(folder, marker):
    torch.save({"payload": Payload(marker)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors.index.x.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    edit(folder / "sentence_bert_config.json", model_args={"variant": "x"})


def pickled_in_an_index_of_another_name(folder, marker):
    pickled(folder, marker)
    (folder / "other.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))
    edit(folder / "config.json", transformers_weights="other.safetensors.index.json")


def pickled_in_a_router(folder, marker):
    (folder / "router" / "query").mkdir(parents=True)
    torch.save({}, folder / "router" / "query" / "pytorch_model.bin")
    types = {"query": "sentence_transformers.base.modules.dense.Dense"}
    (folder / "router" / "router_config.json").write_text(json.dumps({"types": types}))
    modules(folder, 2, type="sentence_transformers.base.modules.router.Router", path="router")


def pickled_adapter(folder, marker):
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))
    torch.save({}, folder / "adapter_model.bin")


def base_of_an_adapter(folder, marker, **settings):
    shutil.copytree(folder, marker.parent / "base")
    edit(marker.parent / "base" / "config.json", **settings)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(marker.parent / "base"), "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


def kernel_for_the_base_of_an_adapter(folder, marker):
    base_of_an_adapter(folder, marker, attn_implementation="someone/kernel")


def pickled_base_of_an_adapter(folder, marker):
    base_of_an_adapter(folder, marker, transformers_weights="other.safetensors.index.json")


def other_adapter(folder, marker):
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "PROMPT_TUNING"}))


def kernel(folder, marker):
    edit(folder / "sentence_bert_config.json", model_args={"attn_implementation": "someone/kernel"})


def class_of_a_tokenizer(folder, marker):
    (folder / "2_Dense" / "wordembedding_config.json").write_text(json.dumps({"tokenizer_class": "evil.Own"}))


def stored_in_blocks(folder, marker):
    edit(folder / "config.json", quantization_config={"load_in_4bit": True})


def setting_of_another_version(folder, marker):
    edit(folder / "sentence_bert_config.json", processor_args={})


ATTACKS = [
    (stored_in_blocks, "is stored quantised"),
    (
        setting_of_another_version,
        "has the key 'processor_args', which Sentence-Transformers .* does not know; remove it",
    ),
    (foreign_class, "modules.json, which names the class 'evil.Own'"),
    (class_of_a_library, "modules.json, which names the class 'os.path.join'"),
    (class_that_the_library_imports, "which names the class 'sentence_transformers.base.model.pickle'"),
    (code_in_the_configuration, "needs custom code, according to its configuration .auto_map."),
    (module_elsewhere, "modules.json names the folder '../elsewhere', which is not within the model's own"),
    (pickled_weights, "has pickled weights only .pytorch_model.bin."),
    (pickled_module, "has pickled weights only .2_Dense/pytorch_model.bin."),
    (pickled_in_an_index, "model.safetensors.index.json names 'pytorch_model.bin'"),
    (pickled_in_an_index_of_a_variant, "sentence_bert_config.json asks for other weights .variant: 'x'"),
    (pickled_in_an_index_of_another_name, "asks for other weights .transformers_weights: 'other.safetensors"),
    (pickled_in_a_router, "has pickled weights only .router/query/pytorch_model.bin."),
    (pickled_adapter, "has pickled weights only .adapter_model.bin."),
    (kernel_for_the_base_of_an_adapter, "base: its config.json asks for the attention kernel 'someone/kernel'"),
    (pickled_base_of_an_adapter, "base: its config.json asks for other weights .transformers_weights"),
    (other_adapter, "adapter_config.json: peft_type 'PROMPT_TUNING'"),
    (kernel, "sentence_bert_config.json asks for the attention kernel 'someone/kernel' of the Hub"),
    (class_of_a_tokenizer, "wordembedding_config.json, which names the class 'evil.Own'"),
]


@pytest.mark.parametrize(("attack", "said"), ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
def test_a_stock_folder_runs_and_unpickles_nothing(attack, said, stock, tmp_path):
    folder = stock()
    attack(folder, tmp_path / "marker")
    with pytest.raises(ValueError, match=said) as raised:
        open_model(str(folder))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "marker").exists()


def test_what_is_not_read_may_lie_in_the_folder(stock, tmp_path):
    folder = stock()
    expected = open_model(str(folder)).encode(SENTENCES)
    for place in (folder, folder / "2_Dense"):  # pickled weights beside the same ones as safetensors
        torch.save({"payload": Payload(tmp_path / "marker")}, place / "pytorch_model.bin")
    torch.save({"payload": Payload(tmp_path / "marker")}, folder / "training_args.bin")
    np.testing.assert_array_equal(open_model(str(folder)).encode(SENTENCES), expected)
    assert not (tmp_path / "marker").exists()


def test_a_package_that_a_model_needs_and_is_not_here_is_one_line(stock):
    folder = stock()
    edit(folder / "config.json", quantization_config={"quant_method": "aqlm"})
    with pytest.raises(ValueError, match="cannot be read: .*aqlm"):
        open_model(str(folder))


OPEN = """
import sys
from embrew.opening import open_model
for name in sys.argv[1:]:
    pooling = "mean" if name == "owner/lm" else None
    try:
        model = open_model(name, pooling=pooling)
        print("opened", type(model).__name__, model.encode(["a text"]).shape)
    except ValueError as error:
        print("refused", error)
"""


@pytest.mark.slow
def test_models_of_the_hub_are_held_to_the_same(made, model_folder, tmp_path):
    """As they lie in Hugging Face's cache: every file a link to a blob."""
    commit = "0" * 40
    for name, source in {"good": made, "pickled": made, "evil": made, "lm": model_folder("llama")}.items():
        repo = tmp_path / "hub" / f"models--owner--{name}"
        (repo / "blobs").mkdir(parents=True)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)
        snapshot = repo / "snapshots" / commit
        shutil.copytree(source, snapshot)
        if name == "pickled":
            pickled(snapshot / "2_Dense", tmp_path / "marker")
        if name == "evil":
            code_in_the_configuration(snapshot, tmp_path / "marker")
        for i, path in enumerate([path for path in sorted(snapshot.rglob("*")) if path.is_file()]):
            path.rename(repo / "blobs" / str(i))
            path.symlink_to(os.path.relpath(repo / "blobs" / str(i), path.parent))
    names = [f"owner/{name}" for name in ("good", "pickled", "evil", "lm")]
    home = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", OPEN, *names]
    done = subprocess.run(command, input="y\n" * 99, capture_output=True, text=True, env=home, cwd=tmp_path, check=True)
    good, bad, evil, model = done.stdout.splitlines()
    assert good == "opened SentenceTransformer (1, 8)" and model == "opened Encoder (1, 32)", done.stdout
    assert bad.startswith("refused owner/pickled has pickled weights only (2_Dense/pytorch_model.bin)")
    assert evil.startswith("refused owner/evil needs custom code")
    assert not (tmp_path / "marker").exists()
