"""A whole training step of ESE on all-MiniLM-L6-v2, beside the same step with the public form of its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness
import torch
from espresso import K, by, full, lowrank
from harness import Bar, Benchmark, Outcome
from models import minilm, triplets
from torch import Tensor
from torch.nn import functional

from embrew.encoder import Encoder
from embrew.losses.espresso import Compression, with_signs
from embrew.methods import Espresso
from embrew.training.step import TrainStep

ROWS = 64  # triplets
LOSS, GRADIENTS = 1e-4, 1e-3  # relative


@dataclass(kw_only=True)
class PublicForm(Espresso):
    """The same sums; targets layer by layer, as the authors' code computes them."""

    decompose: Callable[[Tensor], Tensor] = lowrank

    def _alignments(self, vectors: Tensor, compression: Compression) -> Tensor:
        targets = by(self.decompose, vectors.detach())
        terms = []
        for x, target in zip(vectors[..., :K], targets, strict=True):
            kl = functional.kl_div(x.log_softmax(-1), target.softmax(-1), reduction="batchmean")
            terms.append(functional.mse_loss(x, target) + kl)
        return torch.stack(terms)


def side(encoder: Encoder, objective: Espresso) -> tuple[Callable[[], float], dict[str, torch.nn.Parameter]]:
    """A step on one batch, every weight trained: loss and gradients."""
    objective.setup(encoder)
    step = TrainStep(encoder.eval(), objective)  # no dropout, so that both sides are comparable
    batch = objective.collate(triplets(ROWS), encoder)

    def run() -> float:
        step.zero_grad(set_to_none=True)
        loss = step(**batch)["loss"]
        loss.backward()
        return float(loss.detach())

    return run, step.trainable()


def gradients(run: Callable[[], float], parameters: dict[str, torch.nn.Parameter]) -> tuple[float, Tensor]:
    """The loss, and all gradients in one row."""
    return run(), torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None])


def step(benchmark: Benchmark) -> Outcome:
    """Equality is asked with signs settled: those of `svd_lowrank` are as they come."""
    encoder = minilm()
    own, parameters = side(encoder, Espresso(compression_size=K))
    loss, row = gradients(own, parameters)
    equality: dict[str, Any] = {}
    for what, decompose in (("full decompositions", full), ("svd_lowrank", lambda a: with_signs(lowrank(a)))):
        theirs, other = gradients(side(encoder, PublicForm(compression_size=K, decompose=decompose))[0], parameters)
        equality[f"loss ({theirs:.5f}), {what}"] = harness.require_equal("losses", [(loss, theirs)], LOSS)
        equality[f"gradient, {what}"] = harness.require_equal("gradients", [(row, other)], GRADIENTS)
    bar = Bar(gate=0.97, target=1.0)
    public, _ = side(encoder, PublicForm(compression_size=K))
    return Outcome(
        equality=equality, measures=[harness.time_pairs("time of a step", own, public, bar, unit="s", rounds=5)]
    )


BENCHMARKS = [
    Benchmark(
        name="espresso-step",
        title=f"A training step of ESE on all-MiniLM-L6-v2, {ROWS} NLI triplets, every weight, against the same step "
        "with a loop over layers and svd_lowrank: float32, one core.",
        run=step,
    )
]
