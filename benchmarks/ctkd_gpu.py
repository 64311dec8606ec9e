"""The distillation step of `ctkd.py` on a GPU, at the shapes of Qwen3 models, each side at its best micro-batch."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import gpu
import harness
import torch
from ctkd import (
    QWEN3_VOCABULARY,
    Side,
    build_ours,
    build_peer,
    qwen3,
    random_model,
    random_texts,
    require_same_step,
)
from harness import Bar, Benchmark, Measure, Outcome
from torch import Tensor
from work import count

GPU_LENGTHS = (256, 256)
VOCABULARY = QWEN3_VOCABULARY
MICRO_BATCHES = (1, 2, 4, 8, 16)


def gpu_step(benchmark: Benchmark, *, hidden: int, intermediate: int) -> Outcome:
    """Tokens a second and peak memory in bfloat16, each side at the micro-batch that suits it best."""
    equality = gpu_equality(hidden, intermediate)
    builds = {"ours": build_ours, "peer": build_peer}
    sides, weights = {}, {}
    for name, build in builds.items():
        before = torch.cuda.memory_allocated()
        sides[name] = build(random_model(qwen3(hidden, intermediate), gpu.DEVICE, torch.bfloat16))
        weights[name] = (torch.cuda.memory_allocated() - before) / 2**30
    texts = {
        size: [random_texts(VOCABULARY, [GPU_LENGTHS] * size, seed) for seed in range(4)] for size in MICRO_BATCHES
    }
    losses = [float(side.step(side.batch(texts[2][0]))) for side in sides.values()]
    equality[f"loss in bfloat16 ({losses[1]:.4f})"] = harness.require_equal("losses", [(losses[0], losses[1])], 0.05)

    def stepper(name: str, size: int) -> Callable[[], Tensor]:
        """A step that goes round four batches."""
        side = sides[name]
        batches = [side.batch(part) for part in texts[size]]
        turn = iter(range(10**9))
        return lambda: side.step(batches[next(turn) % len(batches)])

    sweep: list[dict[str, Any]] = []
    for size in MICRO_BATCHES:
        row: dict[str, Any] = {"micro-batch": size}
        for name, other in (("ours", "peer"), ("peer", "ours")):
            step = stepper(name, size)
            room = gpu.fits(step)
            seconds = statistics.median(gpu.seconds(step) for _ in range(7)) if room else None
            row[f"{name}, tokens/s"] = texts[size][0].tokens / seconds if seconds else "out of memory"
            row[f"{name}, GB"] = gpu.peak(step, weights[other]) if room else None
            clear(sides[name])
        sweep.append(row)
    best = {name: max(sweep, key=partial(_speed, name))["micro-batch"] for name in builds}
    both = [row for row in sweep if row["ours, GB"] and row["peer, GB"]]
    if not both:
        raise RuntimeError("not even a micro-batch of 1 fits this card on both sides")

    own, theirs = stepper("ours", best["ours"]), stepper("peer", best["peer"])
    own(), theirs()
    taken = [(gpu.seconds(own), gpu.seconds(theirs)) for _ in range(20)]
    rates = [(texts[best["ours"]][0].tokens / a, texts[best["peer"]][0].tokens / b) for a, b in taken]
    pairs = tuple(a / b for a, b in rates)
    speed = Measure(
        what="step time for as many tokens, each side at its best micro-batch",
        unit="us per token",
        ours=1e6 / statistics.median(a for a, _ in rates),
        peer=1e6 / statistics.median(b for _, b in rates),
        ratio=statistics.median(pairs),
        bar=Bar(gate=1.2, target=1.2),
        low=min(pairs),
        high=max(pairs),
        pairs=pairs,
        steady=max(pairs) / min(pairs) <= harness.SPREAD,
    )
    at = max(row["micro-batch"] for row in both if row["micro-batch"] <= 4)
    peaks = next(row for row in both if row["micro-batch"] == at)
    memory = Measure(
        what=f"peak memory at micro-batch {at}",
        unit="GB",
        ours=peaks["ours, GB"],
        peer=peaks["peer, GB"],
        ratio=peaks["peer, GB"] / peaks["ours, GB"],
        bar=Bar(gate=2.5, target=2.5),
    )
    notes = {
        "tokens of a text": sum(GPU_LENGTHS),
        "best micro-batch, ours": best["ours"],
        "best micro-batch, peer": best["peer"],
        "tokens/s, ours": statistics.median(a for a, _ in rates),
        "tokens/s, peer": statistics.median(b for _, b in rates),
        "GB of weights, ours": weights["ours"],
        "GB of weights, peer": weights["peer"],
        "TFLOP of a text, ours": (count(stepper("ours", 1)).gflop or 0) / 1e3,
        "TFLOP of a text, peer": (count(stepper("peer", 1)).gflop or 0) / 1e3,
        **gpu.ceilings(),
        "sweep": sweep,
    }
    for name, side in list(sides.items()):
        clear(side)
        del sides[name]
    gc.collect()
    torch.cuda.empty_cache()
    return Outcome(equality=equality, measures=[speed, memory], notes=notes)


def gpu_equality(hidden: int, intermediate: int) -> dict[str, float]:
    """The step on a cut of the model to four layers, in float64."""
    ours, peer = (build(random_model(qwen3(hidden, intermediate, 4), gpu.DEVICE)) for build in (build_ours, build_peer))
    for side in (ours, peer):
        side.module.double()
    found = require_same_step(ours, peer, random_texts(VOCABULARY, [(40, 24), (33, 31)]))
    del ours, peer, side
    gc.collect()
    torch.cuda.empty_cache()
    return {f"{name}, 4 layers in float64": gap for name, gap in found.items()}


def clear(side: Side) -> None:
    """Drop the gradients, and give cached memory back."""
    for parameter in side.trained.values():
        parameter.grad = None
    torch.cuda.empty_cache()


def _speed(name: str, row: dict[str, Any]) -> float:
    rate = row[f"{name}, tokens/s"]
    return rate if isinstance(rate, float) else 0.0


def _gpu(tag: str, hidden: int, intermediate: int) -> Benchmark:
    return Benchmark(
        name=f"ctkd-gpu-{tag}",
        title=f"A distillation step, two copies against one: random weights of Qwen3-{tag.upper()}'s shape, bfloat16.",
        run=partial(gpu_step, hidden=hidden, intermediate=intermediate),
        gpu=True,
    )


BENCHMARKS = (_gpu("0.6b", 1024, 3072), _gpu("1.7b", 2048, 6144))
