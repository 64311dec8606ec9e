"""Full fine-tuning: the head is trained by the losses that read it, tied to the embeddings or not.

The oracle is the language model's own loss in transformers, on logits of all positions, differentiated by autograd.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config

from embrew.encoder import Encoder
from embrew.recipe import build
from embrew.text.tokens import Segment, Tokens
from tests import conftest
from tests.conftest import GROUPED, by_default
from tests.families import FAMILIES as FAMILY_SIZES
from tests.families import config_of
from tests.objectives.cases import ENCODERS, loss_and_gradients, rows_for

FAMILIES = ("qwen3-tied", "qwen3", "llama-tied", "gpt-neox")
OBJECTIVES: dict[str, dict[str, Any]] = {
    "bottleneck": {},
    "language_model": {},
    "llama2vec": {"bag_weight": 0.0},
    "mntp": {},
    "sft": {},
}


@pytest.fixture(autouse=True)
def _tied_qwen3(monkeypatch) -> None:
    monkeypatch.setitem(conftest.CONFIGS, "qwen3-tied", Qwen3Config(**GROUPED, head_dim=8, tie_word_embeddings=True))


def ready(make_encoder: Any, family: str, name: str, settings: dict[str, Any]) -> tuple[Encoder, Any, dict[str, Any]]:
    kernel = "eager" if family == "gemma2" else "sdpa"
    encoder = make_encoder(family, attn_implementation=kernel, **ENCODERS.get(name, {}))
    encoder.backbone.train_all()
    objective = build.objective({"type": name, **settings})
    objective.setup(encoder)
    return encoder.train(), objective, objective.collate(rows_for(objective), encoder)


def labels_of(name: str, batch: dict[str, Any]) -> Tensor:
    """At each position the token that is predicted there, or -100."""
    if name == "mntp":
        return batch["labels"]
    tokens: Tokens = batch["text"]
    wanted = tokens.where(Segment.TEXT if name == "llama2vec" else Segment.TARGET)
    labels = torch.full_like(tokens.input_ids, -100)
    labels[:, :-1] = tokens.input_ids[:, 1:].masked_fill(~wanted[:, 1:], -100)
    return labels


def oracle(encoder: Encoder, name: str, batch: dict[str, Any], objective: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """All logits by the model's own head, and torch's cross entropy."""
    encoder.zero_grad(set_to_none=True)
    loss = cross_entropy(logits_of(encoder, batch, objective).flatten(0, 1), labels_of(name, batch).flatten())
    loss.backward()
    return loss.detach(), {key: p.grad for key, p in encoder.named_parameters() if p.grad is not None}


def logits_of(encoder: Encoder, batch: dict[str, Any], objective: Any) -> Tensor:
    """Logits of all positions, of the states that the objective reads, whatever its attention."""
    states: list[Tensor] = []
    hooked = encoder.backbone.hidden_states

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        states.append(hooked(*args, **kwargs))
        return states[-1]

    encoder.backbone.hidden_states = watched
    objective(encoder, batch)
    del encoder.backbone.hidden_states
    return encoder.backbone.causal_lm.get_output_embeddings()(states[0])


def cosine(ours: Tensor, theirs: Tensor) -> float:
    a, b = ours.double().flatten(), theirs.double().flatten()
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("family", by_default(["llama-tied", "gpt-neox"], FAMILIES))
def test_against_all_logits(make_encoder, family, name):
    encoder, objective, batch = ready(make_encoder, family, name, OBJECTIVES[name])
    wanted, others = oracle(encoder, name, batch, objective)
    loss, grads = loss_and_gradients(encoder, objective, batch)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    table = next(key for key in grads if key.endswith(("embed_tokens.weight", "embed_in.weight")))
    assert cosine(grads[table], others[table]) == pytest.approx(1.0, abs=1e-6)
    assert set(grads) == set(others)
    for key, grad in others.items():
        torch.testing.assert_close(grads[key], grad, rtol=1e-3, atol=1e-6, msg=key)


@pytest.mark.parametrize("family", ["qwen3-tied", "granite", "cohere2", "gemma2"])
def test_the_library_agrees(make_encoder, family, monkeypatch):
    """Continued pretraining is what transformers' own forward pass with labels does, whatever it does to logits."""
    if family in FAMILY_SIZES:
        monkeypatch.setitem(conftest.CONFIGS, family, config_of(family))
    encoder, objective, batch = ready(make_encoder, family, "language_model", {})
    loss, grads = loss_and_gradients(encoder, objective, batch)
    encoder.zero_grad(set_to_none=True)
    tokens = batch["text"]
    labels = tokens.input_ids.masked_fill(~tokens.where(Segment.TARGET), -100)
    model = encoder.backbone.causal_lm
    wanted = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, labels=labels).loss
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    del grads["backbone.memory"]  # not read
    for key, grad in grads.items():
        torch.testing.assert_close(grad, dict(encoder.named_parameters())[key].grad, rtol=1e-3, atol=1e-6, msg=key)


def test_checkpointing_and_autocast(make_encoder):
    encoder, objective, batch = ready(make_encoder, "qwen3-tied", "language_model", {})
    _, plain = loss_and_gradients(encoder, objective, batch)
    encoder.backbone.causal_lm.activation_checkpointing_enable()
    with torch.autocast("cpu", torch.bfloat16):
        encoder.zero_grad(set_to_none=True)
        loss = objective(encoder, batch)["loss"]
    loss.backward()
    for key, p in encoder.named_parameters():
        if key in plain and key != "backbone.memory":
            assert p.grad.dtype == torch.float32
            assert cosine(p.grad, plain[key]) > 0.99, key


def test_a_lora_on_the_head_is_refused(make_encoder):
    encoder = make_encoder("qwen3", lora={"target_modules": ["q_proj", "lm_head"]}, attention="causal")
    objective = build.objective({"type": "language_model"})
    batch = objective.collate(rows_for(objective), encoder)
    with pytest.raises(ValueError, match="the head carries a LoRA"):
        objective(encoder, batch)
