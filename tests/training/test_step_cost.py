"""The memory and operations of a step, counted without values, against the same step with values."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from embrew import build
from embrew.data.mixing import MixedOrder
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.model.base import Base
from embrew.modeling.settings.pooling import Pooling
from embrew.training.gradcache import Chunks
from embrew.training.largest_batch import largest_batch
from embrew.training.step import TrainStep
from embrew.training.step_cost import How, counted, step_cost, without_values
from tests.conftest import SENTENCES

WORDS = " ".join(SENTENCES)
ROWS = [{"query": WORDS[:90], "positive": WORDS[90:180], "negatives": [], "text": WORDS[:200]} for _ in range(8)]


def saved_by_plain_autograd(step, batch):
    """Bytes of all distinct tensors in the graph of a loss, weights apart: a walk over the graph, without hooks."""
    weights = {p.data_ptr() for p in step.parameters()}
    found, stack, seen = {}, [step(**batch, progress=torch.tensor(0.0))["loss"].grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        for tensor in [*saved, *getattr(node, "saved_tensors", ())]:
            for one in tensor if isinstance(tensor, tuple | list) else [tensor]:
                if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in weights:
                    found[one.untyped_storage().data_ptr()] = one
        stack += [following for following, _ in node.next_functions]
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("bf16", [False, True])
def test_saved_bytes_are_those_of_a_walk_over_the_graph(dropout, bf16, make_encoder):
    encoder = make_encoder("llama", lora={"lora_dropout": dropout}).train()
    objective = build.objective({"type": "contrastive"})
    objective.setup(encoder)
    encoder.backbone.use_own_sdpa()
    batch = objective.collate(ROWS, encoder, seed=1)
    how = How(kind="cpu", autocast=torch.bfloat16 if bf16 else None)
    state = torch.get_rng_state()
    cost = counted(without_values(encoder), objective, batch, how)
    assert torch.equal(torch.get_rng_state(), state), "counting drew random numbers"
    assert all(p.grad is None for p in encoder.parameters())
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        exact = saved_by_plain_autograd(TrainStep(encoder, objective), batch)
    assert exact == pytest.approx(cost.saved, rel=0.05)  # masks of dropout are drawn, and the loss itself is held
    assert cost.gradients == sum(4 * p.numel() for p in encoder.parameters() if p.requires_grad)


def deep(tokenizer, layers: int) -> Encoder:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    backbone = Backbone(LlamaForCausalLM(config))
    backbone.add_memory(3, seed=1)
    made = {"template": "{instruction}{text}{memory}", "pooling": Pooling("mean", "memory")}
    encoder = Encoder(backbone, tokenizer, Base("folder", "tiny"), attention="bidirectional", **made)
    encoder.backbone.add_lora({"r": 4, "lora_dropout": 0.1})
    return encoder.train()


SETTINGS = list(product(["contrastive", "compression"], ["cpu", "cuda"], [False, True]))
QUICK = [("contrastive", "cuda", True), ("compression", "cpu", False)]


@pytest.mark.parametrize(
    ("name", "kind", "recompute"),
    [pytest.param(*one, marks=[] if one in QUICK else pytest.mark.slow) for one in SETTINGS],
)
def test_two_depths_give_the_cost_of_all_layers(name, kind, recompute, tokenizer):
    """Eight layers, against counting all of them. Recomputed ones hold what enters each of them, and one layer."""
    encoder = deep(tokenizer, 8)
    objective = build.objective({"type": name})
    objective.setup(encoder)
    batch = objective.collate(ROWS, encoder, seed=1)
    how = How(kind=kind, recompute=recompute)
    whole = counted(without_values(encoder), objective, batch, how)
    found = step_cost(encoder, objective, batch, how)
    assert encoder.backbone.num_layers == 8
    for field in ("saved", "gradients", "flop"):
        assert getattr(found, field) == pytest.approx(getattr(whole, field), rel=0.001), field
    for field in ("forward", "backward"):  # the peak of few layers may be at another moment: never less is found
        assert 0.999 <= getattr(found, field) / getattr(whole, field) <= 1.08, field
    if recompute and name == "contrastive":
        assert found.layer / found.positions == 32 * 4  # its input: 32 dimensions in float32


def test_gradient_caching_holds_a_chunk(make_encoder):
    encoder = make_encoder("llama", lora={"lora_dropout": 0.1}).train()
    objective = build.objective({"type": "contrastive"})
    objective.setup(encoder)
    batch = objective.collate(ROWS, encoder, seed=1)
    whole = step_cost(encoder, objective, batch, How(kind="cpu"))
    chunk = step_cost(encoder, objective, batch, How(kind="cpu", chunks=Chunks(rows=2)))
    assert chunk.saved == pytest.approx(whole.saved / 8, rel=0.2)  # 2 of 16 texts
    assert (
        chunk.tokens == pytest.approx(whole.tokens, rel=0.2) and chunk.positions < chunk.tokens / 6
    )  # 8 chunks, padded
    assert chunk.flop == pytest.approx(whole.flop * 4 / 3, rel=0.1)  # one more forward pass: 1 + 1 + 2 of 1 + 2


def test_the_largest_batch_is_found_in_the_order_of_the_stage():
    """Of two data sets, batches are of one; those of the long texts are the largest."""
    rows = Dataset.from_list([{"text": "a"}] * 40 + [{"text": "b" * 50}] * 8)
    found = largest_batch(rows, 4, max_length=100, order=MixedOrder([40, 8], [0.5, 0.5], block=4, seed=0))
    assert [row["text"] for row in found.rows] == ["b" * 50] * 4 and 0.1 < found.mean < 0.9
    assert len(largest_batch(rows, 64, max_length=100).rows) == 64  # more than there are rows
    short = largest_batch(rows, 4, max_length=1).mean  # longer texts are truncated: 6 characters
    assert short > largest_batch(rows, 4, max_length=100).mean
