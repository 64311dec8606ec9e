"""What bfloat16 costs on a CPU that emulates it: `python benchmarks/emulated.py MODEL`, the folder of a language model.

Forward and backward passes of 2 rows of 16 and of 32 tokens in autocast, as in training, beside the same in float32.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import harness
import torch
from transformers import AutoModelForCausalLM

ROUNDS, ROWS, LENGTHS = 3, 2, (16, 32)


def step(model: Any, ids: torch.Tensor, *, autocast: bool) -> None:
    """Compute the gradients of a loss."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(ids).last_hidden_state.float().square().mean()
    loss.backward()
    model.zero_grad()


def main() -> None:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    folder = parser.parse_args().model
    harness.one_core()
    if harness.SHORT:
        parser.error("this processor has instructions for bfloat16")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).base_model
    lines, record = [], harness.circumstances("python benchmarks/emulated.py MODEL")
    for length in LENGTHS:
        ids = torch.randint(1000, (ROWS, length), generator=torch.Generator().manual_seed(harness.SEED))
        sides = {name: partial(step, model, ids, autocast=name == "bfloat16") for name in ("bfloat16", "float32")}
        found = harness.compared(sides, {"emulated": ("bfloat16", "float32")}, ROUNDS)["emulated"]
        record[f"{length} tokens"] = found
        lines.append([f"{ROWS} × {length}", f"{found['ratio']:.1f} ({found['low']:.1f} to {found['high']:.1f})"])
    page = [
        "# emulated",
        "",
        f"CPU seconds of a step in bfloat16 ÷ those in float32, SmolLM2-135M, median of {ROUNDS} rounds.",
        "",
        *harness.table(["rows × tokens", "times as long"], lines),
        "",
        *harness.origin(record),
    ]
    harness.write("emulated", page, record)


if __name__ == "__main__":
    main()
