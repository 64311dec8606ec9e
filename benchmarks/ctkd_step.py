"""The distillation step on a CPU, its time and memory: one copy of the weights against two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import harness
import peaks
import torch
from ctkd import (
    LORA,
    SAME,
    Side,
    Texts,
    build_ours,
    build_peer,
    lora_parameters,
    random_model,
    random_texts,
    require_same_step,
    small_llama,
)
from harness import Bar, Benchmark, Outcome
from peft import PeftModel
from torch import nn
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel

from embrew.model.adapters import AdapterSwitch, attach_lora


def cpu_texts(vocab_size: int) -> Texts:
    """4 texts of 128 tokens of context and 128 of continuation."""
    return random_texts(vocab_size, [(128, 128)] * 4)


def step_time(
    benchmark: Benchmark, *, shape: Callable[[], PreTrainedConfig], texts: Texts, bar: Bar, rounds: int | None = None
) -> Outcome:
    """Forward and backward."""
    ours, peer = (build(random_model(shape())) for build in (build_ours, build_peer))
    equality = require_same_step(ours, peer, texts)
    own, theirs = partial(ours.step, ours.batch(texts)), partial(peer.step, peer.batch(texts))
    measure = harness.time_pairs("step time", own, theirs, bar, rounds=rounds)
    return Outcome(equality=equality, measures=[measure])


def memory_variant(build: Callable[[PreTrainedModel], Side], vocab_size: int) -> Callable[[], dict[str, float]]:
    """One side alone, for a process of its own; a step returns what tells whether it computed the same."""
    side = build(random_model(small_llama(vocab_size)))
    batch = side.batch(cpu_texts(vocab_size))
    return peaks.loss_and_norm(partial(side.step, batch), side.trained)


# ---- switching the adapter off and on ------------------------------------------------------------------------------


def adapter_toggle(benchmark: Benchmark) -> Outcome:
    """Entering and leaving the context, on 32 layers with 6 adapters each."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=32, num_attention_heads=4
    )
    ids = torch.tensor(random_texts(256, [(32, 1)] * 2).contexts)
    with torch.no_grad():
        base = random_model(config)(ids).logits
        model: PeftModel = attach_lora(random_model(config), LORA)
        lora_parameters(model, nn.Parameter(torch.zeros(1)))
        switch = AdapterSwitch(model)
        adapted = model(ids).logits
        with switch.off():
            ours = model(ids).logits
        with model.disable_adapter():
            peer = model(ids).logits
        back = model(ids).logits
    if torch.equal(adapted, base):
        raise harness.Unequal("the adapter does nothing, so that switching it off proves nothing")
    equality = {
        "switched off, ours to PEFT's": harness.require_equal("outputs", [(ours, peer)], 0.0),
        "switched off, ours to the model before it had an adapter": harness.require_equal("outputs", [(ours, base)], 0),
        "switched on again": harness.require_equal("outputs", [(back, adapted)], 0.0),
    }

    def own() -> None:
        with switch.off():
            pass

    def theirs() -> None:
        with model.disable_adapter():
            pass

    bar = Bar(gate=10, target=20)
    measure = harness.time_pairs("off and on", own, theirs, bar, unit="us", repeat=(1000, 20))
    return Outcome(equality=equality, measures=[measure], notes={"adapter layers": len(switch.layers)})


def _cpu(tag: str, vocab_size: int, time_bar: Bar, memory_bar: Bar) -> list[Benchmark]:
    setting = f"6-layer Llama of width 256, V={vocab_size:,}, 4 texts of 128+8+128, float32, LoRA r=16"
    return [
        Benchmark(
            name=f"ctkd-step-{tag}",
            title=f"Time of a distillation step, two copies against one: {setting}.",
            run=partial(step_time, shape=partial(small_llama, vocab_size), texts=cpu_texts(vocab_size), bar=time_bar),
        ),
        Benchmark(
            name=f"ctkd-memory-{tag}",
            title=f"Memory of a distillation step, two copies against one: {setting}.",
            run=partial(peaks.memory_growth, tolerances=SAME, bar=memory_bar),
            variants={
                "ours": partial(memory_variant, build_ours, vocab_size),
                "peer": partial(memory_variant, build_peer, vocab_size),
            },
        ),
    ]


BENCHMARKS = (
    *_cpu(
        "32k",
        32_000,
        Bar(gate=1.15, target=1.3, stretch=1.5),
        Bar(gate=2, target=2.5, stretch=3),
    ),
    *_cpu(
        "128k",
        128_256,
        Bar(gate=1.25, target=1.5, stretch=1.8),
        Bar(gate=2.5, target=3.5, stretch=4),
    ),
    Benchmark(
        name="adapter-toggle",
        title="Switching 192 adapter layers off and on: PEFT's disable_adapter against AdapterSwitch.",
        run=adapter_toggle,
    ),
)
