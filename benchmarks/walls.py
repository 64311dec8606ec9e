"""A training step of LBR's first stage: two causal attention calls beside a dense mask, and beside plain SFT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import torch
from ctkd import bos_tokenizer, random_model, random_texts
from harness import Bar, Benchmark, Outcome
from transformers import LlamaConfig

from embrew.encoder import Encoder
from embrew.methods import Bottleneck, LanguageModel, Objective, SupervisedFineTuning
from embrew.model.attention import TWO_CALLS, Attention
from embrew.model.backbone import Backbone
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Segment, Tokens
from embrew.training.step import TrainStep

VOCABULARY = 8_192
HIDDEN, GRADIENTS = 1e-5, 1e-9  # states in float32, relative; gradients in float64, absolute
ROUNDING = 1e-8  # relative, in float64: the library's norms round to float32, so that last bits there may flip

Step = Callable[[], float]


def encoder(memory_tokens: int) -> Encoder:
    """4 layers, width 256, all weights trained; the texts are token ids."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
    )
    backbone = Backbone(random_model(config))
    if memory_tokens:
        backbone.add_memory(memory_tokens)
    built = Encoder(
        backbone,
        bos_tokenizer(),
        Base("folder", "random"),
        template="{text}{memory}" if memory_tokens else "{text}",
        attention="causal",
        pooling=Pooling("last", "memory" if memory_tokens else "all"),
        max_length=4096,
    )
    backbone.train_all()
    return built.train()


def batch_of(built: Encoder, length: int) -> dict[str, Tokens]:
    """One text and its target, of `length` tokens together with BOS, without the memory."""
    texts = random_texts(VOCABULARY, [(length // 2, length - length // 2)])
    (read,) = built.template.rows([ids[1:] for ids in texts.contexts])
    return {"text": Tokens.pad([read + Row.labelled(texts.continuations[0], Segment.TARGET)])}


def step_of(built: Encoder, objective: Objective, batch: dict[str, Tokens], kernel: str) -> Step:
    """Forward and backward, from cleared gradients, under one attention kernel."""
    module = TrainStep(built, objective)

    def run() -> float:
        built.backbone.inner.config._attn_implementation = kernel
        module.zero_grad(set_to_none=True)
        loss = module(**batch)["loss"]
        loss.backward()
        return float(loss.detach())

    return run


def require_same_step(built: Encoder, ours: Step, peer: Step, batch: dict[str, Tokens]) -> dict[str, float]:
    """The target's states in float32, then, in float64, loss and all gradients."""
    tokens = batch["text"]

    def states(kernel: str) -> torch.Tensor:
        built.backbone.inner.config._attn_implementation = kernel
        with torch.no_grad():
            found = built.backbone.hidden_states(tokens, Attention("causal", bottleneck="visible"))
        return found[tokens.attention_mask.bool()]

    gap = harness.require_equal("hidden states", [(states(TWO_CALLS), states("sdpa"))], HIDDEN)
    built.double()
    found = []
    for step in (ours, peer):
        loss = step()
        grads = {name: p.grad.clone() for name, p in built.named_parameters() if p.grad is not None}
        found.append((loss, grads))
    built.float()
    (loss, grads), (other, others) = found
    if grads.keys() != others.keys():
        raise harness.Unequal("other parameters have a gradient")
    largest = max(float((grads[name] - others[name]).abs().max()) for name in grads)
    if not largest <= GRADIENTS:
        raise harness.Unequal(f"gradients differ by {largest:.2e}, {GRADIENTS:.0e} is allowed")
    pairs = [(grads[name], others[name]) for name in grads]
    return {
        "hidden states, float32": gap,
        f"loss ({other:.6f}), float64": harness.require_equal("losses", [(loss, other)], ROUNDING),
        f"gradients ({len(grads)} tensors), float64": harness.require_equal("gradients", pairs, ROUNDING),
        "gradients, float64, absolute": largest,
    }


def step_time(benchmark: Benchmark, *, length: int, bar: Bar) -> Outcome:
    """Beside the dense mask, then beside the same texts without memory and wall."""
    built = encoder(memory_tokens=1)
    objective: Any = Bottleneck(end=False)
    objective.setup(built)
    batch = batch_of(built, length)
    ours, dense = (step_of(built, objective, batch, kernel) for kernel in (TWO_CALLS, "sdpa"))
    equality = require_same_step(built, ours, dense, batch)
    bare = encoder(memory_tokens=0)
    plain = SupervisedFineTuning(end=False)
    plain.setup(bare)
    sft = step_of(bare, plain, batch_of(bare, length), "sdpa")
    model = LanguageModel(end=False)
    model.setup(bare)
    begin = Row.labelled(bare.template.bos_ids, Segment.PROMPT)
    (text,) = random_texts(VOCABULARY, [(length // 2, 1)]).contexts
    once = step_of(bare, model, {"text": Tokens.pad([begin + Row.labelled(text[1:], Segment.TARGET)])}, "sdpa")
    return Outcome(
        equality=equality,
        measures=[
            harness.time_pairs("step time, dense mask", ours, dense, bar),
            harness.time_pairs("step time, plain SFT of the same text", ours, sft, Bar(gate=1 / 1.05, target=1 / 1.03)),
            harness.time_pairs(
                "step time, next tokens of a text that ours writes again", ours, once, Bar(gate=1 / 3.9, target=1 / 2)
            ),
        ],
        notes={"tokens of text and target": length, "memory tokens": 1},
    )


BENCHMARKS = [
    Benchmark(
        name=f"bottleneck-step-{length}",
        title=f"A training step through the bottleneck on one row of {length:,} tokens, two causal attention calls "
        "against SDPA with a dense mask: 4-layer Llama of width 256, V=8,192, all weights trained, float32, one core.",
        run=partial(step_time, length=length, bar=bar),
    )
    for length, bar in ((1024, Bar(gate=1.1, target=1.25)), (2048, Bar(gate=1.3, target=1.6)))
]
