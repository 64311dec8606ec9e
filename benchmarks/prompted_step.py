"""A training step whose queries stand behind demonstrations, beside the same step without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
from contexts import INSTRUCTION, encoder, texts_of
from harness import Bar, Benchmark, Outcome
from peft import PeftModel
from torch import Tensor

from embrew import assembly
from embrew.training.step import TrainStep

ROWS, QUERY, PASSAGE = 12, 32, 192  # triplets, and words of a query and of a passage
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0}


def step_of(kind: str, demonstrations: int | None = None) -> tuple[Callable[[], float], Callable[[], float]]:
    """Forward and backward of one batch; and how many demonstrations its queries have on average."""
    built = encoder("none" if kind == "icl" else "pair")
    if not isinstance(built.backbone.model, PeftModel):
        built.backbone.add_lora(LORA)
    settings: dict[str, Any] = {"type": kind, "temperature": 0.05}
    settings |= {"positives": "column"} if kind == "contrastive" else {"demonstrations": demonstrations}
    objective = assembly.objective(settings)
    objective.setup(built.train())
    columns = (texts_of(ROWS, QUERY, 31), texts_of(ROWS, PASSAGE, 32), texts_of(ROWS, PASSAGE, 33))
    rows = [
        {"query": query, "positive": positive, "negatives": [negative], "instruction": INSTRUCTION, "data_set": 0}
        for query, positive, negative in zip(*columns, strict=True)
    ]
    batch = objective.collate(rows, built, seed=harness.SEED)
    step = TrainStep(built, objective)

    def run() -> float:
        built.zero_grad(set_to_none=True)
        loss = step(**batch)["loss"]
        loss.backward()
        return float(loss.detach())

    def drawn() -> float:
        drawn: Tensor = objective.inputs.complete(built, batch)["drawn"].rows  # type: ignore[attr-defined]
        return float((drawn >= 0).sum(-1).float().mean())

    return run, drawn


def compare(benchmark: Benchmark) -> Outcome:
    """EPIC's step, then that of textual examples, beside plain contrastive learning on the same triplets."""
    plain, _ = step_of("contrastive")
    none, _ = step_of("epic", 0)
    equality = {"loss with no demonstrations": harness.require_equal("losses", [(none(), plain())], 1e-5)}
    epic, drawn = step_of("epic", 5)
    textual, _ = step_of("icl", 5)
    bar = Bar(gate=1 / 1.25, target=1 / 1.19)
    measures = [
        harness.time_pairs("step time of EPIC; peer: the step without demonstrations", epic, plain, bar),
        harness.time_pairs("step time of EPIC; peer: textual examples", epic, textual, Bar(gate=1, target=1.25)),
    ]
    return Outcome(equality=equality, measures=measures, notes={"mean demonstrations of a query": drawn()})


BENCHMARKS = [
    Benchmark(
        name="epic-step",
        title=f"A contrastive step with 0 to 5 demonstrations before each query: {ROWS} triplets with queries of "
        f"{QUERY} tokens and passages of {PASSAGE}, 6-layer Llama of width 384, LoRA r=16, float32, one core.",
        run=compare,
    )
]
