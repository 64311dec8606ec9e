"""Encoders on a 4-bit base: the same vectors after opening, merging and dequantising, by plain linear layers."""

import copy
import json
import sys

import pytest
import torch
from transformers import LlamaForCausalLM

from embrew.export.exporting import export_encoder
from embrew.modeling.encoder import Encoder
from embrew.modeling.merging import merge_encoder
from embrew.modeling.model.lora_linear import LoraLinear
from embrew.modeling.model.quantized import quantizable_layers, quantized_layers
from embrew.modeling.settings.quantization import Quantization
from embrew.modeling.storage import loading
from embrew.modeling.storage.verification import TOLERANCE, reference_vectors
from embrew.modeling.text.tokens import Tokens
from embrew.recipe import Recipe
from tests import bitsandbytes_stand_in
from tests.bitsandbytes_stand_in import wide_model
from tests.conftest import SENTENCES, stir

LINEAR = 7  # in a layer of Llama
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022833334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _library(monkeypatch):
    bitsandbytes_stand_in.use(monkeypatch)


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


def by_hand(encoder):
    """The encoder with `nn.Linear` in place of each 4-bit layer; weights made of its blocks and factors one by one."""
    made = copy.deepcopy(encoder)
    for name, layer in quantized_layers(made.backbone.causal_lm).items():
        blocks = layer.blocks
        plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
        scales = blocks.scales_in_float32()
        packed = [nibble for byte in blocks.packed[:, 0].tolist() for nibble in (byte >> 4, byte & 15)]
        values = [NF4[index] * float(scales[at // 64]) for at, index in enumerate(packed)]
        weight = torch.tensor(values).view(layer.out_features, layer.in_features)
        for at in range(layer.merged.rank):
            weight += layer.merged.up[:, at, None] * layer.merged.down[None, at]
        plain.weight = torch.nn.Parameter(weight, requires_grad=False)
        parent, _, child = name.rpartition(".")
        setattr(made.backbone.causal_lm.get_submodule(parent), child, plain)
    return made


def largest(one, other):
    return float((reference_vectors(one) - reference_vectors(other)).abs().max())


def test_which_layers_are_quantised(folder):
    encoder = opened(folder)
    names = quantized_layers(encoder.backbone.causal_lm)
    assert len(names) == 2 * (LINEAR - 1) and not any("down_proj" in name or "head" in name for name in names)
    with torch.device("meta"):
        empty = LlamaForCausalLM(encoder.backbone.causal_lm.config)
    assert quantizable_layers(empty).keys() == names.keys()  # `embrew plan` counts them without weights
    assert encoder.backbone.dtype == torch.float32
    assert encoder.describe()["base"]["quantization"]["type"] == "nf4"


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


def test_vectors_and_gradients_are_those_of_plain_layers(folder):
    encoder = adapted(opened(folder))
    plain = by_hand(encoder)
    assert largest(encoder, plain) < 1e-6
    assert largest(encoder, adapted(Encoder.from_pretrained(folder, pooling="mean"))) > 1e-3  # of the float16 weights
    ours, theirs = gradients(encoder), gradients(plain)
    assert len(ours) == 2 * 2 * LINEAR and all(grad.dtype == torch.float32 for grad in ours.values())
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-4, atol=1e-7)
    again = gradients(encoder, checkpointing=True)
    assert all(torch.equal(again[name], grad) for name, grad in ours.items())
    assert largest(encoder, plain) < 1e-6  # also after training


def test_autocast_computes_in_bfloat16(folder):
    encoder = adapted(opened(folder))
    layer = next(iter(quantized_layers(encoder.backbone.causal_lm).values()))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, layer.in_features)).dtype == torch.bfloat16
    exact = gradients(encoder)
    for name, grad in gradients(encoder, dtype=torch.bfloat16).items():
        assert grad.dtype == torch.float32
        assert 0 < (grad - exact[name]).norm() < 0.05 * exact[name].norm()


def test_peft_computes_what_the_fast_path_does_not_cover(folder):
    encoder = adapted(opened(folder))
    tuned = [module for module in encoder.modules() if isinstance(module, LoraLinear)]
    x = torch.zeros(1)
    left = [module for module in tuned if module._product_dtype(x) is None]
    assert len(tuned) == 2 * LINEAR and len(left) == 2 * (LINEAR - 1)  # `down_proj` is a plain layer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_gives_the_same_vectors(dtype, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "computes", lambda dtype, device: True)  # or emulated
    encoder = adapted(opened(folder, dtype="float32"))
    encoder.save_pretrained(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "embrew.json").read_text())
    made = settings["base"]["quantization"]
    assert (settings["format"], made["type"], made["double_quant"]) == (3, "nf4", True)
    assert settings["versions"]["bitsandbytes"] and settings["checks"]["reopened_max_difference"] == 0
    assert "The base is quantised to nf4" in (tmp_path / "saved" / "README.md").read_text()
    again = Encoder.from_pretrained(tmp_path / "saved", dtype=dtype)
    assert hasattr(again.backbone.model, "peft_config")  # "auto" does not merge
    same = [one.backbone.model.state_dict() for one in (encoder, again)]
    packed = [name for name, tensor in same[0].items() if tensor.dtype == torch.uint8]
    assert packed and all(torch.equal(same[0][name], same[1][name]) for name in packed)
    assert largest(encoder, again) <= (0 if dtype == "float32" else TOLERANCE[dtype])
    with pytest.raises(ValueError, match="is a saved encoder, which has its settings already; leave out quantization"):
        Encoder.from_pretrained(tmp_path / "saved", quantization="nf4")


def test_blocks_that_differ_are_refused(folder, tmp_path):
    adapted(opened(folder)).save_pretrained(tmp_path / "saved", verify="off")
    path = tmp_path / "saved" / "embrew.json"
    settings = json.loads(path.read_text())
    settings["base"]["quantization"]["double_quant"] = False
    path.write_text(json.dumps(settings))
    (tmp_path / "saved" / "checksums.json").unlink()
    with pytest.raises(ValueError, match="gives other nf4 blocks"):
        Encoder.from_pretrained(tmp_path / "saved")


def test_without_bitsandbytes(folder, tmp_path, monkeypatch):
    encoder = adapted(opened(folder))
    encoder.save_pretrained(tmp_path / "saved", verify="off")
    expected = reference_vectors(encoder)
    monkeypatch.setitem(sys.modules, bitsandbytes_stand_in.NAME, None)
    for source, how in ((tmp_path / "saved", {}), (folder, {"quantization": "nf4"})):
        with pytest.raises(ValueError, match=r'pip install "embrew\[qlora\]"'):
            Encoder.from_pretrained(source, **how)
    plain = Encoder.from_pretrained(tmp_path / "saved", dequantize=True)
    assert (reference_vectors(plain) - expected).abs().max() < TOLERANCE["float32"]
    assert plain.backbone.owns_weights and not plain.backbone.is_quantized
    plain.save_pretrained(tmp_path / "whole")
    assert largest(Encoder.from_pretrained(tmp_path / "whole"), plain) < 1e-6
    with pytest.raises(ValueError, match="has no quantised base; leave it out"):
        Encoder.from_pretrained(tmp_path / "whole", dequantize=True)
    with pytest.raises(ValueError, match="is for a saved encoder with a quantised base"):
        Encoder.from_pretrained(folder, dequantize=True)


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
    assert largest(one, encoder) < 1e-6 and largest(one, by_hand(one)) < 1e-6
    one.save_pretrained(tmp_path / "again")
    encoder.keep_frozen_lm()  # the teacher is the quantised model, without any adapter
    ids = torch.arange(3, 9)[None]
    with encoder.backbone.frozen_lm() as teacher, torch.no_grad():
        states = teacher.model.base_model(ids).last_hidden_state
        expected = opened(folder).backbone.causal_lm.base_model(ids).last_hidden_state
    assert torch.equal(states, expected)


def test_merge_takes_the_dequantised_weights(folder, tmp_path, monkeypatch):
    encoder = adapted(opened(folder))
    encoder.save_pretrained(tmp_path / "saved", verify="off")
    merged = merge_encoder(tmp_path / "saved", tmp_path / "merged", verify="fast")
    assert largest(merged, encoder) < TOLERANCE["float32"] and not merged.backbone.is_quantized
    real = Encoder.from_pretrained

    def original(*args, dequantize=False, **how):  # merges into the weights before quantisation
        found = real(*args, **how)
        if dequantize:
            found.backbone.dequantize()
            found.backbone.causal_lm.load_state_dict(LlamaForCausalLM.from_pretrained(folder).state_dict())
        return found

    monkeypatch.setattr(Encoder, "from_pretrained", original)
    with pytest.raises(RuntimeError, match="the merged weights give other vectors"):
        merge_encoder(tmp_path / "saved", tmp_path / "wrong")


def test_export_takes_the_dequantised_weights(folder, tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder = adapted(opened(folder))
    export_encoder(encoder, tmp_path / "stock", verify="off")
    assert encoder.backbone.is_quantized  # the export is a copy
    vectors = SentenceTransformer(str(tmp_path / "stock"), device="cpu").encode(SENTENCES, convert_to_tensor=True)
    assert (vectors - torch.as_tensor(encoder.encode(SENTENCES))).abs().max() < TOLERANCE["float32"]


def test_refused(folder):
    encoder = opened(folder)
    with pytest.raises(ValueError, match="4-bit weights cannot be trained; train a LoRA"):
        encoder.backbone.train_all()
    for settings in ({"use_dora": True}, {"lora_bias": True}, {"init_lora_weights": "pissa"}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            encoder.backbone.add_lora(settings)
    for given, said in (("nf5", "type='nf5'; choose from nf4, fp4"), ({"bits": 4}, "unknown key bits")):
        with pytest.raises(ValueError, match=said):
            Encoder.from_pretrained(folder, quantization=given)


def test_recipes():
    recipe = Recipe.load("llm2comp/nano", ["encoder.quantization=nf4"])
    assert recipe.encoder.quantization == Quantization()
    assert Recipe.load("llm2comp/nano", ["encoder.quantization={type: fp4, double_quant: false}"]).encoder.quantization
    assert recipe.stage_hash(0) != Recipe.load("llm2comp/nano").stage_hash(0)
    for override, said in (
        ("encoder.lora=null", "without encoder.lora: 4-bit weights cannot be trained"),
        ("encoder.quantization=nf5", "encoder.quantization='nf5'; choose from nf4, fp4"),
        ("encoder.quantization={bits: 4}", "unknown key encoder.quantization.bits"),
    ):
        with pytest.raises(ValueError, match=said):
            Recipe.load("llm2comp/nano", ["encoder.quantization=nf4", override])


@pytest.mark.skipif(not bitsandbytes_stand_in.INSTALLED, reason="bitsandbytes is not installed")
def test_a_fresh_process_gives_the_same_vectors(folder, tmp_path):
    adapted(opened(folder)).save_pretrained(tmp_path / "saved", verify="full")
    checks = json.loads((tmp_path / "saved" / "embrew.json").read_text())["checks"]
    assert (checks["compared_with"], checks["reopened_max_difference"]) == ("the folder in a fresh process", 0)
