"""What a training step on a real model is made of: `python benchmarks/step_profile.py MODEL`.

One profiled step of contrastive learning (32 NLI triplets) and of distillation (8 paragraphs), as `real_model.py` times
them. $EMBREW_DATA names the data.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import harness
from real_methods import compression_sides
from real_training import Side, embrew_side, nli, recipe_of
from torch.profiler import ProfilerActivity, profile

PARTS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul"),
    "attention": ("aten::_scaled_dot_product_flash_attention",),
    "copies and casts": ("aten::copy_", "aten::_to_copy", "aten::cat", "aten::clone", "aten::index_select"),
    "LoRA beside its products: dropout, bookkeeping": ("aten::index_fill_", "aten::random_", "_LoraProducts"),
    "sums, products and functions of elements": (
        *("aten::mul", "aten::add", "aten::silu", "aten::pow", "aten::neg", "aten::div", "aten::sum", "aten::mean"),
        *("aten::rsqrt", "aten::exp", "aten::sub", "aten::sigmoid", "aten::logsumexp", "aten::_log_softmax"),
    ),
    "optimiser": ("aten::_fused_adamw", "Optimizer"),
}


def parts_of(side: Side) -> dict[str, float]:
    """Return the share of a step's CPU time that each part takes, after two steps without a profile."""
    for _ in range(2):
        side.step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        began = time.process_time()
        side.step()
        whole = time.process_time() - began
    shares: dict[str, float] = defaultdict(float)
    for event in profiled.key_averages():
        name = next((part for part, names in PARTS.items() if event.key.startswith(names)), "everything else")
        shares[name] += event.self_cpu_time_total / 1e6
    total = sum(shares.values())
    return {"seconds": whole, **{name: shares[name] / total for name in (*PARTS, "everything else")}}


def main() -> None:
    """Profile the steps and write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    model = parser.parse_args().model
    harness.one_core()
    contrast = embrew_side(
        recipe_of("baselines/nli-nano", model, "encoder.max_length={query: 128, document: 128}"), nli()
    )
    found: dict[str, dict[str, Any]] = {"contrast": parts_of(contrast)}
    found["distillation"] = parts_of(compression_sides(model)["ours"])
    rows = [[name, *(f"{100 * step[name]:.0f} %" for step in found.values())] for name in (*PARTS, "everything else")]
    rows.append(["seconds on the CPU", *(f"{step['seconds']:.1f}" for step in found.values())])
    lines = [f"# What a training step of {model.name} is made of", "", *harness.table(["part", *found], rows)]
    around = harness.circumstances(f"python benchmarks/step_profile.py {model.name}")
    harness.write("step-profile", [*lines, "", *harness.origin(around)], {**around, "found": found})


if __name__ == "__main__":
    main()
