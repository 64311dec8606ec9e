"""Encoder folders that were made to run code, or to lead elsewhere, when they are opened."""

from __future__ import annotations

import builtins
import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.files.formats import RUN
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES

EVIL = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({marker!r}).touch()
class Own(PreTrainedTokenizerFast):
    pass
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
number = itertools.count()


@pytest.fixture(scope="module")
def saved(model_folder, tmp_path_factory) -> Callable[[str], Path]:
    """Encoders as we save them: on a base of their own folder with a LoRA, or with weights of their own."""
    root = tmp_path_factory.mktemp("saved")

    def place(kind: str) -> Path:
        if not (root / kind).exists():
            encoder = Encoder.from_pretrained(model_folder("llama"), memory_tokens=2, template="{text}{memory}")
            if kind == "lora":
                encoder.backbone.add_lora({"r": 2})
            else:
                encoder.backbone.train_all()
            encoder.save_pretrained(root / kind, verify="off")
        return root / kind

    return place


@pytest.fixture
def attacked(saved, tmp_path, monkeypatch) -> Callable[[str], Path]:
    """A copy of a saved encoder to be changed. Questions whether code may be run are answered with yes."""
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def copied(kind: str) -> Path:
        for name in ("checksums.json",):  # its author would make it anew
            (saved(kind) / name).unlink(missing_ok=True)
        return Path(shutil.copytree(saved(kind), tmp_path / kind))

    return copied


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def evil_tokenizer(folder: Path, marker: Path) -> None:
    name = f"evil_{next(number)}"
    edit(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": [f"{name}.Own"] * 2})
    (folder / f"{name}.py").write_text(EVIL.format(marker=str(marker)))


def evil_model(folder: Path, marker: Path) -> None:
    name = f"evil_{next(number)}"
    found = {"AutoConfig": f"{name}.OwnConfig", "AutoModelForCausalLM": f"{name}.OwnModel"}
    edit(folder / "config.json", model_type="own", auto_map=found)
    (folder / f"{name}.py").write_text(EVIL.format(marker=str(marker)))


def in_the_tokenizer(copied, marker):
    folder = copied("lora")
    evil_tokenizer(folder, marker)
    return folder


def in_the_weights(copied, marker):
    folder = copied("full")
    evil_model(folder / "weights", marker)
    return folder


def in_the_base(copied, marker):
    folder = copied("lora")
    evil_model(folder / "base", marker)
    return folder


def in_another_folder(copied, marker):
    folder = in_the_tokenizer(copied, marker)
    run = folder.parent / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"format": RUN.number, "final": f"../{folder.name}"}))
    return run


def in_an_absolute_folder(copied, marker):
    run = in_another_folder(copied, marker)
    edit(run / "run.json", final=str(run.parent / "lora"))
    return run


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (in_the_tokenizer, "tokenizer of .* brings its own code, which is not run"),
        (in_the_weights, "weights brings its own code, which is not run unasked"),
        (in_the_base, "base brings its own code, which is not run unasked"),
        (in_another_folder, "run.json: final '../lora' is not a name within its folder"),
        (in_an_absolute_folder, "run.json: final '/.*' is not a name within its folder"),
    ],
)
def test_code_of_a_folder_is_not_run(attack, said, attacked, tmp_path):
    folder = attack(attacked, tmp_path / "marker")
    with pytest.raises(ValueError, match=said) as raised:
        Encoder.from_pretrained(folder)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "marker").exists()


def index(folder: Path, file: str) -> None:
    names = load_file(folder / "model.safetensors")
    found = {"metadata": {}, "weight_map": dict.fromkeys(names, file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(found))


def adapter_beside_weights(folder):
    shutil.copytree(folder.parent / "adapter", folder / "weights", dirs_exist_ok=True)


def weights_elsewhere(folder):
    index(folder / "weights", "../../elsewhere.safetensors")
    (folder / "weights" / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")


def pickled_weights(folder):
    index(folder / "weights", "model.bin")
    torch.save({}, folder / "weights" / "model.bin")
    (folder / "weights" / "model.safetensors").unlink()


def pickled_weights_in_an_index_of_another_name(folder):
    index(folder / "weights", "model.bin")
    (folder / "weights" / "model.safetensors.index.json").rename(folder / "weights" / "other.safetensors.index.json")
    torch.save(load_file(folder / "weights" / "model.safetensors"), folder / "weights" / "model.bin")
    edit(folder / "weights" / "config.json", transformers_weights="other.safetensors.index.json")


def kernel_of_the_hub(folder):
    edit(folder / "weights" / "config.json", _attn_implementation="someone/kernel")


def other_learned_tokens(folder):
    save_file({"forward": torch.zeros(2, 32)}, folder / "memory.safetensors")


def base_of(kind, name):
    def change(folder):
        edit(folder / "embrew.json", base={"kind": kind, "name": name, "revision": None, "sha256": None})

    change.__name__ = f"base {kind} {name}"
    return change


def adapter_with(**values):
    def change(folder):
        edit(folder / "adapters" / "0" / "adapter_config.json", **values)

    change.__name__ = f"adapter with {', '.join(values)}"
    return change


CHANGES = [
    ("full", adapter_beside_weights, "weights holds adapter_config.json: an adapter on another model"),
    ("full", weights_elsewhere, "names '../../elsewhere.safetensors'; embrew reads .safetensors files of the model's"),
    ("full", pickled_weights, "names 'model.bin'; embrew reads .safetensors files"),
    ("full", pickled_weights_in_an_index_of_another_name, "asks for other weights .transformers_weights: 'other.safe"),
    ("full", kernel_of_the_hub, "asks for the attention kernel 'someone/kernel' of the Hub, which is code"),
    ("full", other_learned_tokens, "holds a tensor 'forward'; known are memory, soft_prompt"),
    ("lora", base_of("hub", "../x"), "base '../x' is not a model's name on the Hub"),
    ("lora", base_of("hub", "/etc"), "base '/etc' is not a model's name on the Hub"),
    ("lora", base_of("asset", "../x"), "needs the base ../x, which this embrew does not ship"),
    ("lora", base_of("folder", "../x"), "base '../x' becomes a part of a file's name"),
    ("lora", base_of("other", "x"), "base kind 'other'; choose from asset, hub, folder"),
    ("lora", adapter_with(peft_type="PROMPT_TUNING", tokenizer_name_or_path="x"), "peft_type 'PROMPT_TUNING'"),
    ("lora", adapter_with(auto_mapping={"parent_library": "evil"}), "auto_mapping names other modules or files"),
    ("lora", adapter_with(megatron_config={"a": 1}, megatron_core="evil"), "megatron_config names other modules"),
    ("lora", adapter_with(corda_config={"cache_file": "x.pt"}), "corda_config names other modules or files"),
]


@pytest.mark.parametrize(("kind", "change", "said"), CHANGES, ids=[change.__name__ for _, change, _ in CHANGES])
def test_a_folder_leads_to_nothing_outside_it(kind, change, said, attacked, saved, tmp_path):
    shutil.copytree(saved("lora") / "adapters" / "0", tmp_path / "adapter")
    folder = attacked(kind)
    change(folder)
    with pytest.raises(ValueError, match=said) as raised:
        Encoder.from_pretrained(folder)
    assert "\n" not in str(raised.value)


def test_a_hub_name_is_never_a_folder_of_the_working_directory(attacked, model_folder, tmp_path, monkeypatch):
    """transformers takes a folder called OWNER/NAME for the Hub model of that name."""
    folder = attacked("lora")
    base_of("hub", "owner/name")(folder)
    shutil.copytree(model_folder("llama"), tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="names the Hub model owner/name, and here is a folder of that name"):
        Encoder.from_pretrained(folder)


def test_files_that_are_links_open_as_in_the_cache_of_hugging_face(attacked, tmp_path):
    folder = attacked("full")
    expected = Encoder.from_pretrained(folder).encode(SENTENCES)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        blob = blobs / str(next(number))
        path.rename(blob)
        path.symlink_to(blob)
    np.testing.assert_array_equal(Encoder.from_pretrained(folder).encode(SENTENCES), expected)


@pytest.fixture
def with_own_code(model_folder, tmp_path, monkeypatch) -> Path:
    """A language model that needs code of its own folder, which its user has read and trusts."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = Path(shutil.copytree(model_folder("llama"), tmp_path / "lm"))
    evil_model(folder, tmp_path / "marker")
    return folder


@pytest.mark.parametrize("kind", [pytest.param("lora", marks=pytest.mark.slow), "full"])
def test_trusted_code_is_needed_and_run_again_when_the_encoder_is_opened(kind, with_own_code, tmp_path):
    with pytest.raises(ValueError, match="trust_remote_code=True to Encoder.from_pretrained"):
        Encoder.from_pretrained(with_own_code)
    encoder = Encoder.from_pretrained(with_own_code, trust_remote_code=True)
    if kind == "lora":
        encoder.backbone.add_lora({"r": 2})
    else:
        encoder.backbone.train_all()
    encoder.save_pretrained(tmp_path / "saved")
    shutil.rmtree(with_own_code)  # what it needs is in its folder
    with pytest.raises(ValueError, match="(base|weights) brings its own code.*trust_remote_code=True to Encoder"):
        Encoder.from_pretrained(tmp_path / "saved")
    opened = Encoder.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    np.testing.assert_allclose(opened.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)
    opened.save_pretrained(tmp_path / "again")
    with pytest.raises(ValueError, match="its language model needs custom code .OwnModel"):
        export_encoder(opened, tmp_path / "export")


@pytest.mark.slow
def test_a_recipe_that_trusts_a_models_code_is_trained_in_all_its_stages(with_own_code, tmp_path, caplog):
    """Each stage after the first opens the folder of the one before."""
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES * 2))
    stage = {
        "objective": {"type": "contrastive", "positives": "dropout", "attention_dropout": 0.1},
        "data": {"path": str(tmp_path / "texts.jsonl")},
        "batch": {"size": 4},
        "training": {"max_steps": 1, "use_cpu": True},
    }
    encoder = {"model": str(with_own_code), "pooling": {"mode": "mean"}, "lora": {"r": 2}}
    stages = [{"name": "one", **stage}, {"name": "two", "adapter": "merge", **stage}]
    with pytest.raises(ValueError, match="brings its own code"):
        train(Recipe.from_values({"encoder": encoder, "stages": stages}), tmp_path / "refused")
    recipe = Recipe.from_values({"encoder": {**encoder, "trust_remote_code": True}, "stages": stages})
    trained = train(recipe, tmp_path / "run")
    assert "code that comes with the model is run" in caplog.text
    again = train(recipe, tmp_path / "run", resume=True)  # all is finished: the last stage's folder is opened
    np.testing.assert_allclose(again.encode(SENTENCES), trained.encode(SENTENCES), atol=1e-6)
