"""LoRA on linear layers computed together: peft's outputs, gradients and masks, with less drawn and kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from embrew.model.cpu import lora_linear
from embrew.model.cpu.lora_linear import LoraLinear, use_lora_linear

WIDTH = 64


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=2, vocab_size=50, attention_bias=True)).eval()


def adapted(model: nn.Module, dtype: torch.dtype = torch.float64, std: float = 0.3, **settings: Any) -> Any:
    """The model with a LoRA whose B is not zero, by peft alone."""
    torch.manual_seed(1)
    given = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear", **settings}
    made = get_peft_model(copy.deepcopy(model).to(dtype), LoraConfig(**given)).train()
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
            nn.init.normal_(parameter, std=std)
    return made


def ours(model: nn.Module) -> Any:
    made = copy.deepcopy(model)
    use_lora_linear(made)
    return made


def gradients(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Loss and every gradient, that of the input embeddings too."""
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    loss = model(inputs_embeds=embedded, labels=ids).loss
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**found, "loss": loss.detach(), "input": embedded.grad}


def largest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in other)


@pytest.mark.parametrize("how", [{}, {"use_rslora": True}, {"target_modules": ["q_proj", "v_proj", "down_proj"]}])
def test_without_dropout_it_is_peft(llama, how):
    peft = adapted(llama, **how)
    ids = torch.randint(50, (3, 7))
    assert largest(gradients(ours(peft), ids), gradients(peft, ids)) < 1e-11


@pytest.mark.parametrize(
    "how",
    [
        {"use_dora": True},
        {"bias": "lora_only", "target_modules": ["q_proj", "k_proj", "v_proj"]},
        {"lora_bias": True},
    ],
)
def test_what_it_does_not_cover_is_left_to_peft(llama, how, monkeypatch):
    peft = adapted(llama, **how)
    monkeypatch.setattr(lora_linear, "_LoraProducts", None)  # calling it would fail
    ids = torch.randint(50, (3, 7))
    assert largest(gradients(ours(peft), ids), gradients(peft, ids)) < 1e-11


def test_encoding_in_bfloat16_computes_a_float32_adapter_in_bfloat16_as_autocast_does(llama):
    model = ours(adapted(llama)).float().eval()
    model.requires_grad_(False)
    layer = model.base_model.model.model.layers[0].mlp.up_proj
    x = torch.randn(5, layer.in_features)
    with torch.autocast("cpu", torch.bfloat16):
        trained = layer(x)
    layer.base_layer.to(torch.bfloat16)
    assert layer.lora_A["default"].weight.dtype == torch.float32
    found = layer(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, trained)
    by_peft = PeftLinear.forward(layer, x.bfloat16())
    assert torch.allclose(found.float(), by_peft.float(), rtol=0.02, atol=0.02) and not torch.equal(found, by_peft)
    layer.train()  # without dropout, training is peft's, which computes such an adapter in float32
    layer.lora_dropout["default"].p = 0.0
    assert torch.equal(layer(x.bfloat16()), by_peft)


def test_switched_off_and_merged_it_is_the_base(llama):
    peft = adapted(llama)
    model, ids = ours(peft), torch.randint(50, (3, 7))
    base = copy.deepcopy(llama).double()(ids).logits
    with model.disable_adapter(), peft.disable_adapter():
        assert torch.equal(model(ids).logits, peft(ids).logits)
        assert torch.allclose(model(ids).logits, base, rtol=0, atol=1e-12)
    model.merge_adapter()
    assert torch.allclose(model(ids).logits, peft(ids).logits, rtol=0, atol=1e-10)


def test_another_input_is_not_given_the_waiting_output(llama):
    layer = ours(adapted(llama)).base_model.model.model.layers[0].self_attn
    peft = adapted(llama).base_model.model.model.layers[0].self_attn
    one, other = torch.randn(2, 2, 5, 32, dtype=torch.float64)
    layer.q_proj(one)
    assert torch.allclose(layer.k_proj(other), peft.k_proj(other), rtol=0, atol=1e-12)
    assert torch.allclose(layer.v_proj(one), peft.v_proj(one), rtol=0, atol=1e-12)


def test_a_waiting_output_is_for_calls_of_the_same_kind(llama):
    """One input, read by a layer without gradients or with adapters off, and then by another layer otherwise."""
    model, peft = ours(adapted(llama)), adapted(llama)
    layer, theirs = (one.base_model.model.model.layers[0].self_attn for one in (model, peft))
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    with torch.no_grad():
        layer.q_proj(x)
    assert layer.k_proj(x).requires_grad
    with model.disable_adapter():
        layer.q_proj(x)
    assert torch.allclose(layer.v_proj(x), theirs.v_proj(x), rtol=0, atol=1e-12)


def masks(p: float, calls: int, rows: int) -> Tensor:
    """Which inputs three layers that are computed together set to zero: `(calls, layers, rows, WIDTH)` bool.

    Base weights are zero, A and B are the identity, so that an output is what dropout leaves of the input.
    """

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj"):
                setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))

    model = get_peft_model(
        Attention(),
        LoraConfig(r=WIDTH, lora_alpha=WIDTH, lora_dropout=p, target_modules=["q_proj", "k_proj", "v_proj"]),
    ).train()
    for name, parameter in model.named_parameters():
        parameter.data = torch.eye(WIDTH) if "lora_" in name else torch.zeros(WIDTH, WIDTH)
    use_lora_linear(model)
    attention: Any = model.base_model.model
    found = []
    for _ in range(calls):
        x = torch.ones(rows, WIDTH, requires_grad=True)
        outputs = [attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)]
        for output in outputs:
            kept = output.detach() != 0
            assert torch.allclose(output[kept], torch.tensor(1 / (1 - p)))  # scaled as peft scales
            (grad,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
            assert torch.equal(grad != 0, kept)  # the same mask in the backward pass
        found.append(torch.stack([output.detach() == 0 for output in outputs]))
    return torch.stack(found)


def test_masks_are_independent_draws_of_the_probability():
    """Over 1e5 draws per layer: the share, of each column too; pairs of neighbours; pairs of layers; pairs of calls."""
    torch.manual_seed(3)
    p = 0.3
    dropped = masks(p, calls=16, rows=100).double()  # 102,400 draws of each of three layers
    draws = dropped[:, 0].numel()
    assert draws > 1e5
    share = dropped.mean((0, 2, 3))
    assert ((share - p).abs() < 4.5 * (p * (1 - p) / draws) ** 0.5).all()
    columns = dropped.mean((0, 2))
    assert ((columns - p).abs() < 5 * (p * (1 - p) / (draws / WIDTH)) ** 0.5).all()

    def correlation(one: Tensor, other: Tensor) -> float:
        return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])

    limit = 4.5 / draws**0.5
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(correlation(dropped[:, i], dropped[:, j])) < limit
    assert abs(correlation(dropped[..., :-1], dropped[..., 1:])) < limit
    assert abs(correlation(dropped[:-1], dropped[1:])) < limit


def test_bfloat16_is_as_near_to_float64_as_peft(llama):
    exact = adapted(llama, std=0.03)
    ids = torch.randint(50, (5, 21))
    wanted = gradients(exact, ids)
    rounded = copy.deepcopy(exact).float()
    gaps = []
    for model in (rounded, ours(rounded)):
        with torch.autocast("cpu", torch.bfloat16):
            found = gradients(model, ids)
        error = sum(float((found[name].double() - wanted[name]).square().sum()) for name in wanted)
        gaps.append((error / sum(float(grad.square().sum()) for grad in wanted.values())) ** 0.5)
        assert all(p.dtype == torch.float32 for p in model.parameters())
        model.zero_grad()
    assert gaps[1] < 1.3 * gaps[0] < 0.1


def test_a_changed_base_weight_is_cast_again(llama):
    model, ids = ours(adapted(llama, torch.float32)), torch.randint(50, (3, 7))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model(ids)
        for module in model.modules():
            if isinstance(module, LoraLinear):
                module.base_layer.weight.mul_(2)
        assert torch.equal(model(ids).logits, copy.deepcopy(model)(ids).logits)  # a copied model has no casts yet


def kept(run: Callable[[], Any]) -> int:
    """Bytes that are kept for the backward pass."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(seen.values())


def test_less_is_kept_for_the_backward_pass_than_by_peft(llama):
    ids = torch.arange(48).view(2, 24) % 50
    peft = adapted(llama, torch.float32, lora_dropout=0.05)
    assert kept(lambda: ours(peft)(ids)) < 0.75 * kept(lambda: peft(ids))
