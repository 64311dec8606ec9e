"""An adapter on weights that were trained whole: both are saved, and reopen as one encoder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.merging import merge_encoder
from embrew.model.weights import tensors_under_adapter
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES, by_default, stir

SETTINGS = {
    "template": "{instruction}{text}{memory}",
    "attention": "bidirectional",
    "pooling": Pooling("mean", "memory"),
    "memory_tokens": 3,
    "max_length": 64,
}


def shift(encoder: Encoder, by: float = 0.3, seed: int = 4) -> None:
    """What full fine-tuning does to all weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.backbone.causal_lm.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + by * parameter.float().std().nan_to_num(0.1) * noise)


def add_lora(encoder: Encoder, seed: int = 2, **options: bool) -> None:
    torch.manual_seed(seed)
    encoder.backbone.add_lora({"r": 4}, **options)
    stir(encoder.backbone, seed=seed)
    encoder.steps += 5


def whole_then_lora(folder: Path, *, lora: bool = True, dtype: str = "auto", **settings: object) -> Encoder:
    """Full fine-tuning, then an adapter on the weights that came of it."""
    encoder = Encoder.from_pretrained(folder, dtype=dtype, **(settings or SETTINGS))  # type: ignore[arg-type]
    encoder.backbone.train_all()
    shift(encoder)
    encoder.steps = 3
    if lora:
        add_lora(encoder)
    return encoder


def cosine(a: Encoder, b: Encoder) -> float:
    return float((a.encode(SENTENCES) * b.encode(SENTENCES)).sum(-1).mean())


def same(a: Encoder, b: Encoder) -> None:
    assert cosine(a, b) == pytest.approx(1, abs=1e-5)
    assert np.abs(a.encode(SENTENCES) - b.encode(SENTENCES)).max() < 1e-6
    assert a.weights_hash() == b.weights_hash() and a.describe() == b.describe()


@pytest.mark.parametrize(
    ("family", "train_embeddings"),
    by_default(
        [("llama-tied", True)],
        [("llama", False), ("llama-tied", True), ("gemma3", True), ("gpt-neox", False)],
    ),
)
def test_round_trip(family, train_embeddings, model_folder, tmp_path):
    encoder = whole_then_lora(model_folder(family), lora=False)
    plain = {name: tensor.clone() for name, tensor in encoder.backbone.causal_lm.state_dict().items()}
    add_lora(encoder, train_embeddings=train_embeddings)
    under = tensors_under_adapter(encoder.backbone.causal_lm)
    assert under.keys() == plain.keys() and all(torch.equal(under[name], plain[name]) for name in plain)
    if train_embeddings:
        with torch.no_grad():
            encoder.backbone.causal_lm.get_input_embeddings().weight[20:60] += 0.2
    encoder.save_pretrained(tmp_path / "saved")
    again = Encoder.from_pretrained(tmp_path / "saved")
    same(encoder, again)
    untouched = Encoder.from_pretrained(model_folder(family), **SETTINGS)  # type: ignore[arg-type]
    assert cosine(again, untouched) < 0.99
    again.save_pretrained(tmp_path / "twice")
    same(encoder, Encoder.from_pretrained(tmp_path / "twice"))
    assert sorted(path.name for path in (tmp_path / "saved" / "adapters").iterdir()) == ["0"]
    assert not (tmp_path / "saved" / "base").exists(), "the base is not part of it any more"
    for path in (tmp_path / "saved").rglob("*.json"):
        assert str(model_folder(family).parent) not in path.read_text(), path


def test_in_a_fresh_process_and_soft_prompts(model_folder, tmp_path):
    settings = {"template": "{soft_prompt}{text}", "soft_prompt_tokens": 4, "pooling": "mean", "max_length": 64}
    encoder = whole_then_lora(model_folder("qwen3"), **settings)
    encoder.save_pretrained(tmp_path / "saved", verify="full")
    checks = json.loads((tmp_path / "saved" / "embrew.json").read_text())["checks"]
    assert checks["compared_with"] == "the folder in a fresh process" and checks["reopened_max_difference"] <= 1e-6
    same(encoder, Encoder.from_pretrained(tmp_path / "saved"))


def test_adapters_after_the_weights_in_their_order(model_folder, tmp_path):
    """Merged ones become part of the weights, and the last stays one."""
    encoder = whole_then_lora(model_folder("llama"))
    encoder.save_pretrained(tmp_path / "one")
    second = Encoder.from_pretrained(tmp_path / "one", merge_adapter=True)
    assert cosine(encoder, second) == pytest.approx(1, abs=1e-6)
    add_lora(second, seed=9)
    second.save_pretrained(tmp_path / "two")
    again = Encoder.from_pretrained(tmp_path / "two")
    same(second, again)
    encoder.merge_adapter()
    add_lora(encoder, seed=9)
    encoder.save_pretrained(tmp_path / "in memory")
    assert cosine(Encoder.from_pretrained(tmp_path / "in memory"), again) == pytest.approx(1, abs=1e-6)
    merged = merge_encoder(tmp_path / "two", tmp_path / "merged", verify="fast")
    assert cosine(merged, again) == pytest.approx(1, abs=1e-6)
    assert cosine(Encoder.from_pretrained(tmp_path / "merged"), again) == pytest.approx(1, abs=1e-6)
    export_encoder(again, tmp_path / "stock", verify="off")
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu").encode(SENTENCES)
    assert np.abs(stock - again.encode(SENTENCES)).max() < 1e-5


@pytest.mark.parametrize("how", by_default(["written"], ["written", "loaded"]))
def test_changed_weights_are_saved_whole(how, model_folder, tmp_path, caplog):
    """However they were changed, and however little; the log says what differs."""
    encoder = Encoder.from_pretrained(model_folder("llama"), **SETTINGS)  # type: ignore[arg-type]
    if how == "loaded":
        changed = Encoder.from_pretrained(model_folder("llama"), **SETTINGS)  # type: ignore[arg-type]
        shift(changed)
        encoder.load_state_dict(changed.state_dict())
    else:
        with torch.no_grad():
            encoder.backbone.causal_lm.model.layers[1].mlp.down_proj.weight[3, 5] += 1e-3  # too little for vectors
    add_lora(encoder)
    encoder.save_pretrained(tmp_path / "saved")
    assert re.search(r"not those of llama with 0 merged.*of 21 tensors.*saved whole", caplog.text)
    again = Encoder.from_pretrained(tmp_path / "saved")
    same(encoder, again)
    ours, theirs = (tensors_under_adapter(one.backbone.causal_lm) for one in (encoder, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
