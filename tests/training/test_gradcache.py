"""Gradient caching: the loss and gradients of one pass, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from embrew.encoder import Encoder
from embrew.methods import EmbeddingObjective
from embrew.model.batching import passes_by_length
from embrew.recipe import build
from embrew.text.tokens import Tokens
from embrew.training.step import MiniBatchSize, TrainStep, cached_loss
from tests.conftest import SENTENCES, by_default
from tests.objectives.cases import rows_for

SETTINGS: list[dict[str, Any]] = [
    {},
    {"symmetric": True, "temperature": 0.2, "candidates": "both"},
    {"positives": "dropout", "attention_dropout": 0.0},
]
CHUNKS = [MiniBatchSize(rows=1), MiniBatchSize(rows=3), MiniBatchSize(tokens=40), MiniBatchSize(rows=100)]


def prepared(make_encoder, settings: dict[str, Any], **lora: Any) -> tuple[Encoder, EmbeddingObjective, dict[str, Any]]:
    encoder = make_encoder(lora={"lora_dropout": 0.0, **lora})
    objective = build.objective({"type": "contrastive", **settings})
    assert isinstance(objective, EmbeddingObjective)
    batch = objective.collate(rows_for(objective), encoder)
    return encoder.train(), objective, batch


def gradients(
    step: nn.Module, batch: dict[str, Any], *, scale: float = 1.0
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    step.zero_grad(set_to_none=True)
    loss = step(**batch)["loss"]
    (loss * scale).backward()
    return loss.detach(), {name: p.grad.clone() for name, p in step.named_parameters() if p.grad is not None}


def in_groups(
    step: TrainStep, batch: dict[str, Any], split: Callable[[Tokens], list[list[int]]]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return loss and gradients of a batch whose texts are embedded group by group, each with a graph."""
    embeddings = {}
    assert isinstance(step.objective, EmbeddingObjective)
    for role, tokens in step.objective.inputs.texts(batch).items():
        groups = split(tokens)
        order = torch.tensor([i for group in groups for i in group]).argsort()
        embeddings[role] = torch.cat([step.encoder(tokens.select(group)) for group in groups])[order]
    plain = step.objective.loss(embeddings, batch)["loss"]
    step.zero_grad(set_to_none=True)
    plain.backward()
    return plain.detach(), {name: p.grad for name, p in step.named_parameters() if p.grad is not None}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], close: float = 5e-6) -> None:
    assert one.keys() == other.keys()
    largest = max(grad.abs().max() for grad in other.values())
    for name, grad in one.items():
        assert (grad - other[name]).abs().max() <= close * largest, name


@pytest.mark.parametrize("chunks", by_default(CHUNKS[1:3], CHUNKS), ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_loss_and_gradients_of_one_pass(make_encoder, settings, chunks):
    encoder, objective, batch = prepared(make_encoder, settings)
    if settings.get("positives") == "dropout":
        encoder.eval()
    plain, wanted = gradients(TrainStep(encoder, objective), batch)
    loss, found = gradients(TrainStep(encoder, objective, chunks), batch)
    assert abs(loss - plain) <= 1e-6 * max(abs(plain), 1)  # a small loss is the difference of larger numbers
    assert any(name.endswith("memory") for name in found), "memory tokens are trained too"
    same(found, wanted, close=5e-6 if plain > 0.1 else 2e-5)  # its gradients are differences too


def test_full_training_and_a_loss_scale(make_encoder):
    encoder, objective, batch = prepared(make_encoder, {})
    encoder.backbone.merge_adapter()
    for parameter in encoder.parameters():
        parameter.requires_grad_(True)
    _, wanted = gradients(TrainStep(encoder, objective), batch, scale=8.0)
    _, found = gradients(TrainStep(encoder, objective, MiniBatchSize(rows=2)), batch, scale=8.0)
    same(found, wanted)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("settings", "lora_dropout"),
    [({"attention_dropout": 0.3}, 0.4), ({"positives": "dropout", "attention_dropout": 0.3}, 0.0)],
    ids=["pairs", "texts twice"],
)
def test_dropout_is_replayed(make_encoder, settings, lora_dropout, checkpointing):
    """The reference embeds the same chunks with a graph, from the same random numbers."""
    encoder, objective, batch = prepared(make_encoder, settings, lora_dropout=lora_dropout)
    objective.setup(encoder)
    chunks = MiniBatchSize(rows=2)
    step = TrainStep(encoder, objective, chunks)
    if checkpointing:
        step.activation_checkpointing_enable()
    torch.manual_seed(3)
    loss, found = gradients(step, batch)
    after = torch.rand(1)
    torch.manual_seed(3)
    plain, wanted = in_groups(
        step, batch, lambda tokens: [one.rows for one in passes_by_length(tokens, encoder.cost, batch_size=2)]
    )
    assert abs(loss - plain) <= 1e-6
    same(found, wanted)
    assert torch.equal(after, torch.rand(1)), "the second pass must not move the random numbers of the training"


def test_autocast_is_the_same_in_the_second_pass(make_encoder):
    encoder, objective, batch = prepared(make_encoder, {})
    seen: list[torch.dtype] = []
    encoder.backbone.inner.layers[0].mlp.down_proj.register_forward_hook(lambda *args: seen.append(args[-1].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss = cached_loss(objective, encoder, batch, MiniBatchSize(rows=3))["loss"]
    first = len(seen)
    loss.backward()
    assert len(seen) == 2 * first - 1 and set(seen) == {torch.bfloat16}  # the graph of the last chunk is kept


def test_memory_is_that_of_a_chunk(make_encoder):
    """Counted, not timed: what autograd keeps for the backward pass at any moment, for batches of 8 and of 64."""
    most = {}
    for size in (8, 64):
        encoder, objective, _ = prepared(make_encoder, {})
        texts = [f"{SENTENCES[0][:40]} {100 + i}" for i in range(size)]
        rows = [{"query": text, "positive": text[::-1], "negatives": [], "instruction": None} for text in texts]
        batch = objective.collate(rows, encoder)
        for name, chunks in (("cached", MiniBatchSize(rows=8)), ("plain", None)):
            held = [0, 0]

            def keep(tensor: torch.Tensor, held: list[int] = held) -> list[Any]:
                held[0] += tensor.numel()
                held[1] = max(held)
                return _Counted(tensor, held)

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda counted: counted.tensor):
                TrainStep(encoder, objective, chunks)(**batch)["loss"].backward()
            most[name, size] = held[1]
    assert most["plain", 64] > 5 * most["plain", 8]
    assert most["cached", 64] <= 1.15 * most["cached", 8]


class _Counted:
    """A tensor kept by autograd; taken off the count when it is let go."""

    def __init__(self, tensor: torch.Tensor, held: list[int]) -> None:
        self.tensor, self.held = tensor, held

    def __del__(self) -> None:
        self.held[0] -= self.tensor.numel()
