"""The dtype of a stage's matrix products: chosen by device, recorded, compared when a run resumes, used for scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import Linear as PeftLinear

from embrew.encoder import Encoder
from embrew.model import adapters
from embrew.model.cpu.lora_linear import LoraLinear
from embrew.opening import open_model
from embrew.recipe import Recipe, build
from embrew.recipe.build import encoders
from embrew.storage import base_model, loading
from embrew.training.stages import train
from tests.training.one_stage import one_stage

TEXTS = ["The lake is deep.", "A cat sleeps on the warm wall.", "Trains leave at noon."]


def recipe(folder: Path, data: Path, **encoder: Any) -> Recipe:
    return one_stage(
        folder,
        data,
        {"template": "{text}", "lora": {"r": 4, "lora_dropout": 0.1}, **encoder},
        {"max_steps": 3, "learning_rate": 0.05},
        objective={"type": "contrastive", "positives": "dropout"},
        batch={"size": 3},
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 3))
    return path


def computing(patch: pytest.MonkeyPatch, answer: bool) -> None:
    for module in (encoders, base_model, loading):
        patch.setattr(module, "supports_natively", lambda dtype, device: answer or dtype == torch.float32)


def test_auto_is_bfloat16_where_the_device_computes_in_it(model_folder, data, monkeypatch):
    lora, full = recipe(model_folder("llama"), data), recipe(model_folder("llama"), data, lora=None)
    asked = recipe(model_folder("llama"), data, dtype="float32")
    computing(monkeypatch, True)
    assert [build.compute_dtype(one, one.stages[0], "cpu") for one in (lora, full, asked)] == [
        "bfloat16", "float32", "float32",
    ]  # fmt: skip
    assert [build.autocasts(one, "cuda") for one in (lora, full, asked)] == [True, True, False]
    stage = lora.stages[0].model_copy(update={"training": {"bf16": False}})
    assert build.compute_dtype(lora, stage, "cpu") == "float32"
    for training in ({"fp16": False}, {"bf16": False}, {"bf16": True}, {}):  # as the Trainer is told
        given = {**lora.stages[0].training, **training}
        stage = lora.stages[0].model_copy(update={"training": given})
        args = build.training_arguments(stage, build.objective(stage.objective), data.parent, seed=1, autocast=True)
        assert (build.compute_dtype(lora, stage, "cpu") == "bfloat16") == args.bf16
    computing(monkeypatch, False)
    assert build.compute_dtype(lora, lora.stages[0], "cpu") == "float32"


@pytest.fixture(scope="module")
def trained(model_folder, data, tmp_path_factory) -> Path:
    if not base_model.supports_natively(torch.bfloat16, torch.device("cpu")):
        pytest.skip("this CPU does not compute in bfloat16")
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(recipe(model_folder("llama"), data), folder)
    return folder


def test_it_is_recorded_and_weights_are_float32(trained):
    assert json.loads((trained / "one" / "stage.json").read_text())["arithmetic"] == {"one": "bfloat16"}
    assert json.loads((trained / "one" / "embrew.json").read_text())["arithmetic"] == "bfloat16"
    assert "Matrix products in bfloat16, weights and losses in float32: one." in (trained / "one/README.md").read_text()
    encoder = Encoder.from_pretrained(trained, merge_adapter=False)
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    assert encoder.compute_dtype == "bfloat16"
    adapted = {type(module) for module in encoder.modules() if isinstance(module, PeftLinear)}
    assert adapted == {LoraLinear}  # a stage that continues the adapter is computed in the same way


def test_a_stage_goes_on_as_it_was_begun(trained, model_folder, data, tmp_path, monkeypatch):
    """A finished stage is skipped on any machine; one in progress keeps its dtype, or is refused."""
    from embrew.training.stage_json import StageSettings

    lora = recipe(model_folder("llama"), data)
    computing(monkeypatch, False)
    train(lora, trained, resume=True)
    computing(monkeypatch, True)
    written = json.loads((trained / "one" / "stage.json").read_text())
    (tmp_path / "one.work").mkdir()

    def begun(arithmetic: dict[str, str]) -> None:
        (tmp_path / "one.work" / "stage.json").write_text(json.dumps({**written, "arithmetic": arithmetic}))

    begun({"one": "float32"})
    assert StageSettings(lora, tmp_path).compute_dtypes(0) == {"one": "float32"}
    begun({"one": "bfloat16"})
    assert StageSettings(lora, tmp_path).compute_dtypes(0) == {"one": "bfloat16"}
    computing(monkeypatch, False)
    with pytest.raises(ValueError, match="begun in bfloat16, which this device only emulates"):
        StageSettings(lora, tmp_path).compute_dtypes(0)


def test_scores_are_computed_as_trained(trained, monkeypatch):
    found: Any = open_model(str(trained), as_trained=True)
    plain: Any = open_model(str(trained))
    assert (found.backbone.dtype, plain.backbone.dtype) == (torch.bfloat16, torch.float32)
    cosines = torch.nn.functional.cosine_similarity(*(torch.tensor(e.encode(TEXTS)) for e in (found, plain)))
    assert cosines.min() > 0.999
    assert open_model(str(trained), dtype="float32", as_trained=True).backbone.dtype == torch.float32  # type: ignore[union-attr]
    computing(monkeypatch, False)
    assert open_model(str(trained), as_trained=True).backbone.dtype == torch.float32  # type: ignore[union-attr]


def test_a_chain_is_scored_as_it_was_trained(model_folder, data, tmp_path, monkeypatch, caplog):
    """Training rounded the sum of base and first adapter too, however little that adapter changes."""
    if not base_model.supports_natively(torch.bfloat16, torch.device("cpu")):
        pytest.skip("this CPU does not compute in bfloat16")
    values = recipe(model_folder("llama"), data).resolved()
    (first,) = values["stages"]
    values["stages"] = [first, {**first, "name": "two", "adapter": "merge"}]
    train(Recipe.from_values(values), tmp_path / "run")
    monkeypatch.setattr(loading, "lost_to_rounding", lambda model, dtype: 0.2 if dtype == torch.bfloat16 else 0.0)
    monkeypatch.setattr(adapters, "lost_to_rounding", lambda model, dtype: 0.2 if dtype == torch.bfloat16 else 0.0)
    caplog.clear()
    found: Any = open_model(str(tmp_path / "run"), as_trained=True)
    assert (found.backbone.dtype, caplog.records) == (torch.bfloat16, [])
    plain = Encoder.from_pretrained(tmp_path / "run", merge_adapter=False)
    with torch.autocast("cpu", torch.bfloat16):
        trained_so = torch.tensor(plain.encode(TEXTS))
    cosines = torch.nn.functional.cosine_similarity(torch.tensor(found.encode(TEXTS)), trained_so)
    assert cosines.min() > 0.999
