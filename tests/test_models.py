"""Tiny models are copies of cached ones: nothing that a test does to one reaches another."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from embrew.encoder import Encoder
from embrew.model.backbone import Backbone
from embrew.model.kernels import use_own_sdpa
from tests import models
from tests.models import CONFIGS, ENCODER_CONFIGS, SENTENCES, adapted, tiny_model

HOW: dict[str, tuple[Any, ...]] = {
    "plain": ("llama", 0, 0, None, 0.1, "sdpa"),
    "memory and LoRA": ("qwen2", 3, 0, {"lora_dropout": 0.0}, 0.1, "sdpa"),
    "soft prompt, tied, eager": ("llama-tied", 0, 2, {}, 0.1, "eager"),
    "windows": ("gemma3", 2, 0, {"target_modules": ["q_proj"]}, 0.1, "sdpa"),
}
UNCHANGING = (type, ModuleType, str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)


def reachable(root: Any) -> dict[Any, Any]:
    """Return the objects that can be changed and are held by one, and the memory of tensors, each under its identity.

    Classes and modules are of the whole process; of a function only its closure is followed.
    """
    seen: dict[int, Any] = {}
    found: dict[Any, Any] = {}
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if isinstance(item, UNCHANGING) or id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, FunctionType):
            waiting += item.__closure__ or ()
            continue
        if isinstance(item, Tensor) and item.numel():
            found["memory", item.untyped_storage().data_ptr()] = item
        if isinstance(item, dict | list | set) or hasattr(item, "__dict__"):
            found[id(item)] = item
        waiting += gc.get_referents(item)
    return found


def test_what_is_reachable_is_found() -> None:
    shared = [1]
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert not reachable(one).keys() & reachable(other).keys()
    one.register_forward_hook(lambda *_: shared.append(2))
    other.extra = {"in": (shared,)}
    assert reachable(one).keys() & reachable(other).keys() == {id(shared)}
    third = nn.Linear(2, 2)
    third.register_buffer("row", one.weight.detach()[1])
    assert reachable(one).keys() & reachable(third).keys() == {("memory", one.weight.untyped_storage().data_ptr())}


@pytest.mark.parametrize("how", HOW)
def test_copies_share_nothing(how: str) -> None:
    """Neither with each other, nor with the one in the cache, nor with the configurations that all are made from."""
    made = [adapted(*HOW[how]), adapted(*HOW[how])]
    cached = models._adapted(repr(HOW[how]), id(CONFIGS[HOW[how][0]]))[0]
    held = [reachable(one) for one in (*made, cached, [CONFIGS, ENCODER_CONFIGS])]
    assert all(id(one.causal_lm.config) in objects for one, objects in zip(made, held, strict=False))
    weights = [sum(isinstance(key, tuple) for key in objects) for objects in held[:3]]
    assert weights[0] == weights[1] == weights[2] > 10
    for i, one in enumerate(held):
        for other in held[:i]:
            assert [str(one[key])[:200] for key in one.keys() & other.keys()] == []


def test_made_from_a_copied_configuration() -> None:
    """The library keeps the object that it is given."""
    eager = tiny_model("qwen2", attn_implementation="eager")
    eager.config.sliding_window = 4
    other = tiny_model("qwen2").config
    assert other is not eager.config is not CONFIGS["qwen2"]
    assert other._attn_implementation == "sdpa" and other.sliding_window != 4


def broken_weights(backbone: Backbone) -> None:
    with torch.no_grad():
        backbone.causal_lm.get_input_embeddings().weight[25] = float("nan")


def a_step(backbone: Backbone) -> None:
    backbone.causal_lm.requires_grad_(True)
    backbone.train()
    ids = torch.arange(3, 12)[None]
    backbone.causal_lm(ids, labels=ids).loss.backward()
    torch.optim.SGD(backbone.parameters(), 1.0).step()


def another_kernel(backbone: Backbone) -> None:
    backbone.inner.config._attn_implementation = "flex_attention"


def another_model(backbone: Backbone) -> None:
    """Of the same family, made with another kernel."""
    tiny_model("llama", attn_implementation="eager").config.num_hidden_layers = 1


def settings(backbone: Backbone) -> None:
    backbone.causal_lm.config.sliding_window = 2
    backbone.causal_lm.config.rope_parameters["rope_theta"] = 3.0
    backbone.causal_lm.generation_config.max_new_tokens = 1


def buffers(backbone: Backbone) -> None:
    for buffer in backbone.buffers():
        buffer.zero_()


def hooks(backbone: Backbone) -> None:
    for module in backbone.modules():
        module.register_forward_pre_hook(lambda *_: pytest.fail("a hook of another test"))


def patched_forward(backbone: Backbone) -> None:
    for module in backbone.modules():
        module.forward = lambda *_, **__: pytest.fail("the forward of another test")


CHANGES: list[Callable[[Backbone], Any]] = [
    broken_weights,
    a_step,
    another_kernel,
    another_model,
    settings,
    buffers,
    hooks,
    patched_forward,
    Backbone.double,
    Backbone.merge_adapter,
    Backbone.train_all,
    lambda backbone: use_own_sdpa(backbone.inner),
    lambda backbone: backbone.model.disable_adapter_layers(),
    lambda backbone: backbone.set_attention_dropout(0.5),
    lambda backbone: backbone.causal_lm.gradient_checkpointing_enable(),
]


def state(encoder: Encoder) -> Any:
    """What one encoder is: values, dtypes, who is trained, settings, hooks."""
    backbone = encoder.backbone
    tensors = {name: (t.dtype, t.detach().numpy().tobytes()) for name, t in backbone.state_dict(keep_vars=True).items()}
    trained = [name for name, parameter in backbone.named_parameters() if parameter.requires_grad]
    hooked = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in backbone.modules()]
    config = backbone.causal_lm.config
    vectors = encoder.encode(SENTENCES[:2]).tolist()
    return tensors, trained, hooked, config.to_dict(), config._attn_implementation, vectors


def test_a_changed_copy_changes_no_other(make_encoder: Callable[..., Encoder]) -> None:
    wanted = state(make_encoder(lora={}))
    for change in CHANGES:
        change(make_encoder(lora={}).backbone)
        assert state(make_encoder(lora={})) == wanted, change
