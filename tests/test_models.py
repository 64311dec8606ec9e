"""Tiny models are copies of cached ones: nothing that a test does to one reaches another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from embrew.encoder import Encoder
from embrew.model.backbone import Backbone
from tests.models import SENTENCES


def broken_weights(backbone: Backbone) -> None:
    with torch.no_grad():
        backbone.causal_lm.get_input_embeddings().weight[25] = float("nan")


def a_step(backbone: Backbone) -> None:
    backbone.causal_lm.requires_grad_(True)
    backbone.train()
    ids = torch.arange(3, 12)[None]
    backbone.causal_lm(ids, labels=ids).loss.backward()
    torch.optim.SGD(backbone.parameters(), 1.0).step()


def settings(backbone: Backbone) -> None:
    backbone.causal_lm.config.sliding_window = 2
    backbone.causal_lm.config.rope_parameters["rope_theta"] = 3.0
    backbone.causal_lm.generation_config.max_new_tokens = 1


CHANGES: list[Callable[[Backbone], Any]] = [
    broken_weights,
    a_step,
    settings,
    Backbone.merge_adapter,
    lambda backbone: backbone.set_attention_dropout(0.5),
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
