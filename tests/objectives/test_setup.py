"""In Python too, an objective is refused for an encoder whose settings it cannot use, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embrew import assembly
from embrew.encoder import Encoder

BASE = {"type": "contrastive"}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {  # further settings, attention of an encoder without memory
    "compression": ({}, "bidirectional", "memory_tokens=0: compression needs memory tokens"),
    "alignment": ({}, "bidirectional", "memory_tokens=0: alignment needs memory tokens"),
    "bottleneck": ({}, "causal", "the bottleneck is the memory right before the target"),
    "joint": ({"base": BASE}, "causal", "the bottleneck is the memory right before the target"),
    "epic": ({}, "causal", "set encoder.demonstrations"),
    "icl": ({}, "causal", "set encoder.demonstrations"),
    "llama2vec": ({}, "causal", "llama2vec reads memory tokens after"),
    "mntp": ({}, "causal", "is then next-token prediction with holes"),
    "language_model": ({}, "bidirectional", "needs encoder.attention: causal"),
    "sft": ({}, "bidirectional", "needs encoder.attention: causal"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_setup_refuses_an_encoder_that_does_not_fit(name: str, make_encoder: Callable[..., Encoder]) -> None:
    settings, attention, words = REFUSED[name]
    encoder = make_encoder(memory_tokens=0, attention=attention, template="{instruction}{text}", lora={})
    with pytest.raises(ValueError, match=words):
        assembly.objective({"type": name, **settings}).setup(encoder)
