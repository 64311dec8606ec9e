"""LoRAs that peft saved: merged with every tensor matched, or refused; as peft itself computes."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from embrew.cli import app
from embrew.corpus import read_vectors
from embrew.encoder import Encoder
from embrew.files.reading import BrokenFile
from embrew.opening import open_model

TEXTS = ["Herons wait in shallow water.", "ok", "A longer sentence, with 12 numbers, on how bills are paid in 2024."]
HIDDEN = {"causal": AutoModelForCausalLM, "auto": AutoModel}


@pytest.fixture(scope="module")
def base(model_folder) -> Path:
    return model_folder("llama")


def save_adapter(folder: Path, base: Path, kind: str = "causal", **settings: Any) -> Path:
    """A LoRA with noise in it, saved by peft."""
    model = HIDDEN[kind].from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": "all-linear", **settings}))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    adapted.save_pretrained(folder)
    return folder


def by_peft(folder: Path, encoder: Encoder, kind: str, base: Path) -> np.ndarray:
    """Means of the last states, as peft and transformers compute them."""
    model = PeftModel.from_pretrained(HIDDEN[kind].from_pretrained(base, dtype=torch.float32), folder).eval()
    rows = []
    for row in encoder.template.rows(TEXTS, max_length=512):
        with torch.no_grad():
            states = model(input_ids=torch.tensor([row.ids]), output_hidden_states=True).hidden_states[-1][0]
        rows.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.stack(rows)


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("peft") / "adapter", base)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"kind": "causal", "task_type": "CAUSAL_LM"}, marks=pytest.mark.slow),
        pytest.param({"kind": "causal"}, marks=pytest.mark.slow),
        pytest.param({"kind": "auto"}, marks=pytest.mark.slow),
        pytest.param(
            {"kind": "auto", "task_type": "FEATURE_EXTRACTION", "target_modules": ["q_proj", "v_proj"]},
            marks=pytest.mark.slow,
        ),
        {"kind": "auto", "use_dora": True, "use_rslora": True, "target_modules": ["layers.0.mlp.up_proj", "o_proj"]},
        {"kind": "causal", "rank_pattern": {"q_proj": 8}, "modules_to_save": ["embed_tokens"]},
    ],
    ids=["causal", "causal, no task", "auto, no task", "auto, two layers", "dora", "embeddings"],
)
def test_as_peft_computes(settings, base, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = save_adapter(tmp_path / "adapter", base, **settings)
    encoder = Encoder.from_pretrained(folder, pooling="mean", dtype="float32")
    count = len(load_file(folder / "adapter_model.safetensors"))
    assert f"{count} of {count} tensors matched" in caplog.text
    np.testing.assert_allclose(encoder.encode(TEXTS), by_peft(folder, encoder, settings["kind"], base), atol=2e-6)
    assert not np.allclose(
        encoder.encode(TEXTS), Encoder.from_pretrained(base, pooling="mean").encode(TEXTS), atol=1e-3
    )
    encoder.save_pretrained(tmp_path / "saved")
    reopened = Encoder.from_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(reopened.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    assert reopened.describe()["merged_adapters"] == 1


def test_commands_and_python_agree(adapter, base, tmp_path):
    """The base that the adapter names, and one that is given."""
    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(TEXTS))
    expected = Encoder.from_pretrained(base, adapter=adapter, pooling="mean", dtype="float32").encode(TEXTS)
    recipe = tmp_path / "given.yaml"
    recipe.write_text(f"encoder: {{model: {base}, adapter: {adapter}, pooling: {{mode: mean}}}}")
    for number, model in enumerate(([str(adapter), "--pooling", "mean"], [str(recipe)])):
        out = tmp_path / str(number)
        done = CliRunner().invoke(app, ["encode", model[0], str(lines), str(out), *model[1:], "--dtype", "float32"])
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(read_vectors(out).load()[1], expected, atol=1e-6)


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return apply


def configured(**values: Any) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return apply


def key(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in tensors if "layers.1" in name)


def of_another_base(folder: Path) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(
        {k: torch.zeros(*(2 * n for n in t.shape)) for k, t in tensors.items()}, folder / "adapter_model.safetensors"
    )


def ia3(folder: Path) -> None:
    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base)
    config = IA3Config(target_modules=["k_proj"], feedforward_modules=[])
    shutil.rmtree(folder)
    get_peft_model(model, config).save_pretrained(folder)


def on_itself(folder: Path) -> None:
    configured(base_model_name_or_path=str(folder))(folder)


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a renamed key": (changed(lambda t: t.update(x=t.pop(key(t)))), "27 of 28 tensors matched; x has no place"),
    "a key too many": (changed(lambda t: t.update(x=torch.zeros(2))), "28 of 29 tensors matched; x has no place"),
    "a key too few": (changed(lambda t: t.pop(key(t))), r"27 of 27 tensors matched; the file lacks base_model\."),
    "keys of no layer": (
        changed(lambda t: [t.update({f"y.{k}": t.pop(k)}) for k in list(t)]),
        r"0 of 28 tensors matched; y\.base_model\.\S+ has no place",
    ),
    "another base's": (of_another_base, "does not fit LlamaForCausalLM.*give the base that the adapter was trained on"),
    "cut": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x10" * 40),
        "adapter_model.safetensors cannot be",
    ),
    "no tensors": (lambda f: (f / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    "pickled": (pickled, "embrew reads no pickled weights"),
    "no base": (configured(base_model_name_or_path=None), "does not say which model it was trained on"),
    "base of another machine": (
        configured(base_model_name_or_path="/home/x/model"),
        "/home/x/model, which is not on",
    ),
    "on an adapter": (on_itself, "which is an adapter itself"),
    "IA3": (ia3, "peft_type 'IA3'; embrew opens adapters of type LORA only"),
    "other modules": (configured(megatron_config={"a": "b"}), "megatron_config names other modules"),
    "unknown settings": (configured(r="four"), "cannot be read|does not fit"),
    "broken configuration": (
        lambda f: (f / "adapter_config.json").write_text("{"),
        "adapter_config.json cannot be read",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_refused_in_one_line(kind, adapter, tmp_path):
    damage, message = BROKEN[kind]
    shutil.copytree(adapter, tmp_path / "adapter")
    damage(tmp_path / "adapter")
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        Encoder.from_pretrained(tmp_path / "adapter", pooling="mean")
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def stock_adapter(base, tmp_path_factory) -> tuple[Path, np.ndarray]:
    """A Sentence-Transformers folder with an adapter, and its vectors before it was saved."""
    from sentence_transformers import SentenceTransformer, models

    model = SentenceTransformer(modules=[models.Transformer(str(base)), models.Pooling(32, "mean")], device="cpu")
    model.to(torch.float32)
    model.add_adapter(LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="FEATURE_EXTRACTION"))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    folder = tmp_path_factory.mktemp("stock") / "st"
    model.save(str(folder))
    return folder, model.encode(TEXTS)


def test_a_sentence_transformers_folder_with_an_adapter(stock_adapter, tmp_path):
    folder, vectors = stock_adapter
    opened: Any = open_model(str(folder), dtype="float32")
    np.testing.assert_allclose(opened.encode(TEXTS), vectors, atol=1e-4)
    np.testing.assert_allclose(Encoder.from_pretrained(folder).encode(TEXTS), vectors, atol=1e-4)
    shutil.copytree(folder, tmp_path / "st")
    changed(lambda t: t.update({"base_model.model.other.lora_A.weight": t.pop(key(t))}))(tmp_path / "st")
    with pytest.raises(BrokenFile, match=r"base_model\.model\.other\.lora_A\.weight of its adapter has no place"):
        open_model(str(tmp_path / "st"))


def test_trained_further(adapter, base, tmp_path):
    """The recipe's own LoRA goes on top; the saved folder replays both."""
    from embrew.recipe import Recipe
    from embrew.training.stages import train

    rows = [{"query": f"{text} {i}", "positive": text} for i, text in enumerate(TEXTS * 3)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    training = {"max_steps": 2, "learning_rate": 1e-3, "warmup_steps": 0}
    stage = {"name": "pairs", "objective": {"type": "contrastive"}, "batch": {"size": 4}, "training": training}
    stage |= {"data": {"path": str(tmp_path / "pairs.jsonl")}}
    encoder = {"model": str(base), "adapter": str(adapter), "pooling": {"mode": "mean"}, "lora": {"r": 4}}
    train(Recipe.from_values({"encoder": encoder, "stages": [stage]}), tmp_path / "run", verify="off")
    opened = Encoder.from_pretrained(tmp_path / "run", merge_adapter=True)
    assert opened.describe()["merged_adapters"] == 2
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "pairs").vocab_size == 300
    again = Encoder.from_pretrained(tmp_path / "run", merge_adapter=False)
    np.testing.assert_allclose(again.encode(TEXTS), opened.encode(TEXTS), atol=2e-6)
