"""Norms, feed-forward parts and attention of training on a CPU: the library's values, with less kept."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM

from embrew.model.adapters import attach_lora
from embrew.model.attention import Attention
from embrew.model.cpu import attention as cpu_attention
from embrew.model.cpu.layer_parts import use_own_parts
from embrew.model.forward import forward, pack
from embrew.model.kernels import use_two_calls
from embrew.text.tokens import Row, Segment, Tokens
from tests.families import config_of

HIDDEN, INNER, HEADS, KEY_HEADS, LAYERS = 64, 160, 4, 2, 2


def adapted(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "vocab_size": 50}
    config = LlamaConfig(**sizes, num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS)
    model = attach_lora(LlamaForCausalLM(config), {"r": 4, "lora_dropout": dropout}).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "lora_B" in name:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.1)
    return model


def found(model: Any, ids: Tensor, *, short: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(1)
    model.zero_grad()
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=short):
        logits = model(inputs_embeds=embedded).logits
    logits.float().square().mean().backward()
    return logits.detach(), {"input": embedded.grad} | {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_outputs_are_those_of_the_library_to_the_bit_and_gradients_up_to_rounding(dropout, short):
    library, ids = adapted(dropout), torch.randint(0, 50, (3, 7))
    ours = copy.deepcopy(library)
    use_own_parts(ours)
    assert {type(module) for module in ours.modules()}.isdisjoint({type(library.base_model.model.model.norm)})
    (wanted, gradients), (logits, own) = (found(model, ids, short=short) for model in (library, ours))
    assert torch.equal(logits, wanted)
    assert own.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (own[name] - gradient).norm() <= 2e-6 * gradient.norm(), name
    with library.disable_adapter(), ours.disable_adapter(), torch.no_grad():
        assert torch.equal(ours(ids).logits, library(ids).logits)


def test_every_weight_of_a_norm_is_trained():
    library, ids = adapted(), torch.randint(0, 50, (3, 7))
    ours = copy.deepcopy(library)
    use_own_parts(ours)
    for model in (library, ours):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" in name)
    gradients, own = (found(model, ids)[1] for model in (library, ours))
    for name, gradient in gradients.items():
        torch.testing.assert_close(own[name], gradient, atol=1e-7, rtol=1e-4)


def test_parts_that_compute_something_else_stay():
    torch.manual_seed(0)
    model = AutoModel.from_config(config_of("gemma2"))
    kinds = [type(module) for module in model.modules()]
    use_own_parts(model)
    assert [type(module) for module in model.modules()] == kinds


def test_a_layer_keeps_no_copies(monkeypatch):
    """What the graph keeps of a token, in numbers: two wide states of the feed-forward part, and no repeated heads."""
    library = adapted()
    ours = copy.deepcopy(library)
    use_own_parts(ours)
    rows = [torch.arange(3, 3 + length).tolist() for length in (40, 40, 24, 24)]
    tokens = Tokens.pad([Row.labelled(ids, Segment.TEXT) for ids in rows])
    sizes, states, gradients = [], [], []
    for model in (library, ours):
        inner = model.base_model.model.model
        assert use_two_calls(inner)
        if model is library:
            monkeypatch.setattr(cpu_attention, "CHANGES", ("is_causal",))
        else:
            monkeypatch.undo()
        packed = pack(inner, tokens, Attention("causal"))
        assert packed is not None
        embedded = inner.get_input_embeddings()(tokens.input_ids).detach().requires_grad_()
        frozen = {parameter.data_ptr() for parameter in model.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept, frozen: set[int] = frozen) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in frozen:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = forward(inner, embedded, tokens, Attention("causal"), packed=packed)
        (output * tokens.attention_mask[..., None]).square().sum().backward()
        sizes.append(sum(kept.values()) / 4 / 128 / LAYERS)
        states.append(output[tokens.attention_mask.bool()].detach())
        gradients.append(embedded.grad)
    assert torch.equal(*states)
    assert (gradients[0] - gradients[1]).norm() <= 2e-6 * gradients[0].norm()
    assert sizes[0] - sizes[1] > 2 * INNER, sizes
