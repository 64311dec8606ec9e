"""What bfloat16 does to gradients at the start of a stage: `python benchmarks/gradient_rounding.py`.

Gradients of SmolLM2-135M's first batches, before any step, with matrix products in bfloat16 as stages train by default,
and in float32; rows and drawn splits are the same, without dropout. Cosine and ratio of norms of all trained weights.
SmolLM2's tokenizer adds no BOS: a decoder that reads no text begins with the memory, or with EOS before it.
$EMBREW_DATA names the data, which are those of `plans/real-*.yaml`. Results: `results/gradient-rounding.*`.
"""

from __future__ import annotations

from typing import Any

import harness
import torch
from harness import circumstances, origin, table, write
from torch import Tensor

from embrew.recipe import Recipe, build
from embrew.training.step import TrainStep

BATCHES, ROWS = 6, 4
SEED = 1
HERE = harness.HERE / "recipes"
LLM2COMP = str(HERE / "llm2comp" / "nano-wiki.yaml")
PROMPT = [
    'encoder.template="This sentence : \\"{text}\\" means in one word:\\""',
    "encoder.attention=causal",
    "encoder.pooling={mode: last, over: all}",
]
LBR = str(HERE / "lbr" / "medical-nano.yaml")
AUTOREGEMBED = str(HERE / "autoregembed" / "nano.yaml")
BOS = "stages.compress.objective.decoder_bos"
STAGES: dict[str, tuple[str, str, list[str]]] = {
    "LLM2Comp, continuation, EOS before the memory": (LLM2COMP, "compress", []),
    "LLM2Comp, continuation, memory first": (LLM2COMP, "compress", [f"{BOS}=false"]),
    "AutoRegEmbed, compression, EOS before the memory": (AUTOREGEMBED, "compress", [f"{BOS}=true"]),
    "AutoRegEmbed, compression, memory first": (AUTOREGEMBED, "compress", []),
    "LBR, IB-GL, a word before the text": (LBR, "learn", ['encoder.template="Text: {instruction}{text}\\n{memory}"']),
    "LBR, IB-GL, memory first": (LBR, "learn", []),
    "contrast, PromptEOL": (str(HERE / "baselines" / "simcse-nano.yaml"), "supervised", PROMPT),
}


def gradients(name: str) -> list[dict[str, Tensor]]:
    """Return the gradient of each batch, in bfloat16 and in float32, all weights in one vector."""
    path, stage_name, settings = STAGES[name]
    recipe = Recipe.load(
        path, ["encoder.model=smollm2-135m", f"seed={SEED}", "encoder.lora.lora_dropout=0.0", *settings]
    )
    recipe = recipe.model_copy(update={"stages": [one for one in recipe.stages if one.name == stage_name]})
    (stage,) = recipe.stages
    torch.manual_seed(SEED)
    encoder, objective = build.encoder(recipe), build.objective(stage.objective)
    build.prepare_encoder(encoder, recipe, 0, objective)
    step = TrainStep(encoder, objective)
    rows = build.datasets(stage, objective, encoder)[0].shuffle(seed=SEED)
    found = []
    for batch in range(BATCHES):
        some = [rows[ROWS * batch + i] for i in range(ROWS)]
        inputs = objective.collate(some, encoder, seed=SEED + batch)
        both = {}
        for dtype, rounds in (("bfloat16", True), ("float32", False)):
            step.zero_grad(set_to_none=True)
            torch.manual_seed(SEED + batch)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=rounds):
                loss = step(**inputs, progress=torch.tensor(0.0))["loss"]
            loss.backward()
            both[dtype] = torch.cat([p.grad.flatten() for p in step.trainable().values() if p.grad is not None])
        found.append(both)
    return found


def main() -> None:
    """Measure, and write the page."""
    harness.one_core()
    found: dict[str, list[dict[str, float]]] = {}
    for name in STAGES:
        found[name] = [compared(**both) for both in gradients(name)]
        print(name, found[name], flush=True)
    lines = [
        "# Gradients in bfloat16 and in float32, before any step",
        "",
        f"SmolLM2-135M, {BATCHES} batches of {ROWS} rows, seed {SEED}, no dropout: lowest, median and highest "
        "of the batches. Rows and drawn splits are the same.",
        "",
        *table(
            ["stage", "cosine", "norm in bfloat16 / in float32", "norm in float32"],
            [[name, *shown(each)] for name, each in found.items()],
        ),
        "",
    ]
    around = circumstances("python benchmarks/gradient_rounding.py")
    write("gradient-rounding", [*lines, *origin(around)], {**around, "found": found})


def compared(bfloat16: Tensor, float32: Tensor) -> dict[str, float]:
    """Cosine and ratio of the norms of two gradients."""
    one, other = bfloat16.double(), float32.double()
    return {
        "cosine": float(one @ other / (one.norm() * other.norm())),
        "ratio": float(one.norm() / other.norm()),
        "norm": float(other.norm()),
    }


def shown(batches: list[dict[str, Any]]) -> list[str]:
    """Lowest, median and highest of each figure."""
    cells = []
    for key in ("cosine", "ratio", "norm"):
        values = torch.tensor([one[key] for one in batches])
        cells.append(f"{values.min():.3f}, {values.median():.3f}, {values.max():.3f}")
    return cells


if __name__ == "__main__":
    main()
