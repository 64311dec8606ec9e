"""Encoders on a 4-bit base: the same vectors after opening, merging and exporting; refusals without bitsandbytes.

Tests that need bitsandbytes are skipped where it is not installed.
"""

import copy
import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.merging import merge_encoder
from embrew.model.adapters import dequantize, quantized_layers
from embrew.recipe import Recipe
from embrew.recipe.build.checking import check_recipe
from embrew.settings.base import Quantization
from embrew.storage import base_model
from embrew.storage.saving import reference_vectors, tolerance
from embrew.text.tokens import Tokens
from tests.conftest import SENTENCES, stir, wide_model

LINEAR = 7  # in a layer of Llama
EXTRA = r'pip install "embrew\[qlora\]"'
needs_library = pytest.mark.usefixtures("library")


@pytest.fixture
def library():
    pytest.importorskip("bitsandbytes")


@pytest.fixture(scope="session")
def folder(tmp_path_factory, tokenizer):
    return wide_model(tmp_path_factory.mktemp("wide"), tokenizer)


def opened(folder, **given):
    return Encoder.from_pretrained(folder, quantization="nf4", pooling="mean", **given)


def adapted(encoder, seed=1):
    encoder.backbone.add_lora({"r": 4})
    stir(encoder.backbone, seed=seed)
    encoder.steps = 1
    return encoder.eval()


def plain_layers(encoder):
    """The encoder with `nn.Linear` in place of each 4-bit layer, and its LoRA on these."""
    copied = copy.deepcopy(encoder)
    dequantize(copied.backbone.causal_lm, torch.float32)
    assert not copied.backbone.is_quantized
    return copied


def largest(one, other):
    return float((reference_vectors(one) - reference_vectors(other)).abs().max())


@needs_library
@pytest.mark.parametrize("settings", ["nf4", {"type": "fp4", "double_quant": False}])
def test_weights_are_those_of_bitsandbytes(settings, folder):
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    encoder = Encoder.from_pretrained(folder, quantization=settings, pooling="mean")
    weights = Encoder.from_pretrained(folder, pooling="mean").backbone.causal_lm.state_dict()
    layers = quantized_layers(encoder.backbone.causal_lm)
    assert len(layers) == 2 * LINEAR and not any("head" in name for name in layers)
    assert encoder.backbone.dtype == torch.float32
    chosen = Quantization.parse(settings)
    for name, layer in quantized_layers(encoder.backbone.causal_lm).items():
        how = {"quant_type": chosen.type, "compress_statistics": chosen.double_quant}
        expected = dequantize_4bit(*quantize_4bit(weights[f"{name}.weight"], **how))
        assert torch.equal(dequantize_4bit(layer.weight.data, layer.weight.quant_state), expected)
    assert encoder.describe()["base"]["quantization"] == chosen.as_dict()


def gradients(encoder, *, dtype=None, checkpointing=False):
    """Of every trained weight, in one batch."""
    encoder.zero_grad()
    encoder.train()
    if checkpointing:
        encoder.backbone.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        encoder.hidden_states(Tokens.pad(encoder.template.rows(SENTENCES))).float().square().mean().backward()
    encoder.eval()
    return {name: p.grad for name, p in encoder.named_parameters() if p.requires_grad}


@needs_library
def test_vectors_and_gradients_are_those_of_plain_layers(folder):
    encoder = adapted(opened(folder))
    plain = plain_layers(encoder)
    assert largest(encoder, plain) < 1e-6
    assert largest(encoder, adapted(Encoder.from_pretrained(folder, pooling="mean"))) > 1e-3  # of the float16 weights
    ours, theirs = gradients(encoder), gradients(plain)
    assert len(ours) == 2 * 2 * LINEAR and all(grad.dtype == torch.float32 for grad in ours.values())
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-4, atol=1e-7)
    again = gradients(encoder, checkpointing=True)
    assert all(torch.equal(again[name], grad) for name, grad in ours.items())
    assert largest(encoder, plain) < 1e-6  # also after training


@needs_library
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_folder_gives_the_same_vectors(dtype, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "supports_natively", lambda dtype, device: True)  # or emulated
    encoder = adapted(opened(folder, dtype="float32"))
    encoder.save_pretrained(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "embrew.json").read_text())
    assert settings["base"]["quantization"] == {"type": "nf4", "double_quant": True}
    assert settings["versions"]["bitsandbytes"] and settings["checks"]["verify"] == "fast"
    assert "The base is quantised to nf4" in (tmp_path / "saved" / "README.md").read_text()
    again = Encoder.from_pretrained(tmp_path / "saved", dtype=dtype)
    assert hasattr(again.backbone.model, "peft_config")  # "auto" does not merge
    same = [one.backbone.model.state_dict() for one in (encoder, again)]
    packed = [name for name, tensor in same[0].items() if tensor.dtype == torch.uint8]
    assert packed and all(torch.equal(same[0][name], same[1][name]) for name in packed)
    assert largest(encoder, again) <= (0 if dtype == "float32" else tolerance(getattr(torch, dtype)))
    with pytest.raises(ValueError, match="is a saved encoder, which has its settings already; leave out quantization"):
        Encoder.from_pretrained(tmp_path / "saved", quantization="nf4")


def test_without_bitsandbytes(folder, tmp_path, monkeypatch):
    """Training, opening, merging and exporting are refused, with the name of the extra."""
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    saved = tmp_path / "saved"
    adapted(Encoder.from_pretrained(folder, pooling="mean")).save_pretrained(saved, verify="off")
    settings = json.loads((saved / "embrew.json").read_text())
    settings["base"]["quantization"] = Quantization().as_dict()
    (saved / "embrew.json").write_text(json.dumps(settings))
    (saved / "checksums.json").unlink()
    for source, how in ((saved, {}), (folder, {"quantization": "nf4"})):
        with pytest.raises(ValueError, match=EXTRA):
            Encoder.from_pretrained(source, **how)
    with pytest.raises(ValueError, match=EXTRA):
        merge_encoder(saved, tmp_path / "merged")
    with pytest.raises(ValueError, match=EXTRA):
        check_recipe(Recipe.load("llm2comp/nano", ["encoder.quantization=nf4"]), here=True)
    result = CliRunner().invoke(app, ["export", str(saved), str(tmp_path / "out")])
    assert result.exit_code != 0 and "embrew[qlora]" in " ".join(result.stderr.split())
    check_recipe(Recipe.load("llm2comp/nano", ["encoder.quantization=nf4"]))  # for another machine


@needs_library
def test_a_chain_of_adapters_stays_in_float32(folder, tmp_path):
    """As with `adapter: merge` between stages: nothing is added to the 4-bit weights."""
    encoder = adapted(opened(folder))
    before = reference_vectors(encoder)
    packed = {name: layer.weight.data.clone() for name, layer in quantized_layers(encoder.backbone.causal_lm).items()}
    encoder.merge_adapter()
    assert (reference_vectors(encoder) - before).abs().max() < 1e-6
    layers = quantized_layers(encoder.backbone.causal_lm)
    assert all(torch.equal(layers[name.removesuffix(".base_layer")].weight, data) for name, data in packed.items())
    adapted(encoder, seed=2).save_pretrained(tmp_path / "saved")
    assert largest(Encoder.from_pretrained(tmp_path / "saved"), encoder) < 1e-6
    one = Encoder.from_pretrained(tmp_path / "saved", merge_adapter=True)
    assert {layer.merged.rank for layer in quantized_layers(one.backbone.causal_lm).values()} == {8}
    assert largest(one, encoder) < 1e-6 and largest(one, plain_layers(one)) < 1e-6
    one.save_pretrained(tmp_path / "again")
    encoder.keep_frozen_lm()  # the teacher is the quantised model, without any adapter
    ids = torch.arange(3, 9)[None]
    with encoder.backbone.frozen_lm() as teacher, torch.no_grad():
        states = teacher.model.base_model(ids).last_hidden_state
        expected = opened(folder).backbone.causal_lm.base_model(ids).last_hidden_state
    assert torch.equal(states, expected)


@needs_library
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_merge_takes_the_dequantised_weights(dtype, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "supports_natively", lambda dtype, device: True)  # or emulated
    encoder = adapted(opened(folder))
    encoder.save_pretrained(tmp_path / "saved", verify="off")
    merged = merge_encoder(tmp_path / "saved", tmp_path / "merged", dtype=dtype, verify="fast")
    assert largest(merged, encoder) < tolerance(getattr(torch, dtype)) and not merged.backbone.is_quantized
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert largest(Encoder.from_pretrained(tmp_path / "merged"), merged) == 0


@needs_library
def test_exports_take_the_dequantised_weights(folder, tmp_path):
    from gguf import GGUFReader
    from sentence_transformers import SentenceTransformer

    encoder = adapted(opened(folder))
    export_encoder(encoder, tmp_path / "stock", verify="off")
    assert encoder.backbone.is_quantized  # the export is a copy
    assert "quantization_config" not in (tmp_path / "stock" / "config.json").read_text()
    vectors = SentenceTransformer(str(tmp_path / "stock"), device="cpu").encode(SENTENCES, convert_to_tensor=True)
    assert (vectors - torch.as_tensor(encoder.encode(SENTENCES))).abs().max() < tolerance(torch.float32)
    export_encoder(encoder, tmp_path / "gguf", runtimes=["llama.cpp"], weights="fp32", verify="off")
    (path,) = (tmp_path / "gguf").glob("*.gguf")
    weights = {tensor.name: torch.tensor(tensor.data) for tensor in GGUFReader(path).tensors}
    encoder.backbone.dequantize()
    assert torch.equal(weights["blk.1.ffn_down.weight"], encoder.backbone.inner.layers[1].mlp.down_proj.weight)


@needs_library
def test_refused(folder, tmp_path, tokenizer):
    encoder = opened(folder)
    with pytest.raises(ValueError, match="4-bit weights cannot be trained; train a LoRA"):
        encoder.backbone.train_all()
    for settings in ({"use_dora": True}, {"lora_bias": True}, {"init_lora_weights": "pissa"}, {"bias": "all"}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            encoder.backbone.add_lora(settings)
    with pytest.raises(ValueError, match="down_proj, which is no linear layer with an input of a multiple of 64"):
        opened(wide_model(tmp_path, tokenizer, intermediate_size=96))
