"""Write the table of `docs/how-to/memory-by-gpu.md`: memory and time of the page's recipe by model, method and GPU.

    python scripts/memory_by_gpu.py [--check]

Nothing is measured: all of it is `embrew.planning`. With `--check` nothing is written, and the exit status is 1 if the
page differs. It takes about a minute.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from embrew.planning import plan_recipe
from embrew.planning.devices import GPUS
from embrew.planning.stage import UTILIZATION, StagePlan
from embrew.recipe import Recipe

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "memory-by-gpu.md"
BEGIN, END = "<!-- begin: scripts/memory_by_gpu.py -->", "<!-- end -->"
RECIPE = re.compile(r'^```yaml title="contrast.yaml"\n(.*?)^```', re.MULTILINE | re.DOTALL)
MODELS = ("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
METHODS = {"LoRA": (), "QLoRA": ("encoder.quantization=nf4",), "full": ("encoder.lora=null",)}
COLUMNS = {
    "RTX 3060, 12 GB": "3060",
    "L4, 24 GB": "l4",
    "A10, 24 GB": "a10",
    "RTX 4090, 24 GB": "4090",
    "A100, 40 GB": "a100-40",
    "A100, 80 GB": "a100-80",
    "H100, 80 GB": "h100",
}
USABLE = 0.9  # share of a GPU's memory that a peak may take, since a plan is off by some percent
CHECKPOINTING = "stages.contrast.training.activation_checkpointing=true"


def planned(model: str, method: str, *overrides: str, gpu: str = "h100") -> StagePlan:
    """Return the plan of the page's recipe; its bytes and operations are the same for every GPU of `GPUS`."""
    (text,) = RECIPE.findall(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "contrast.yaml"
        file.write_text(text, encoding="utf-8")
        recipe = Recipe.load(file, [f"encoder.model={model}", *METHODS[method], *overrides])
    (stage,) = plan_recipe(recipe, gpu=gpu).stages
    return stage


def minutes(plan: StagePlan, gpu: str) -> float | None:
    """Return the minutes of a plan's steps on a GPU; None: it does not fit."""
    if plan.bytes["peak"] > USABLE * GPUS[gpu].memory or plan.steps is None:
        return None
    return plan.steps * plan.flop / (GPUS[gpu].speed("bfloat16") * UTILIZATION) / 60


def row(model: str, method: str) -> str:
    """Return the line of a model and a method."""
    plain, checkpointed = planned(model, method), planned(model, method, CHECKPOINTING)
    cells = []
    for gpu in COLUMNS.values():
        alone, slower = minutes(plain, gpu), minutes(checkpointed, gpu)
        cells.append(shown(alone) if alone is not None else "–" if slower is None else f"{shown(slower)}*")
    peaks = [f"{plan.bytes['peak'] / 1e9:.1f}" for plan in (plain, checkpointed)]
    return f"| {model.partition('/')[2]} | {method} | " + " | ".join([*peaks, *cells]) + " |"


def shown(value: float) -> str:
    """Return minutes with two digits at least."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| model | trained | peak, GB | peak* | " + " | ".join(COLUMNS) + " |"
    yield "|---|---|" + "---:|" * (2 + len(COLUMNS))
    for model in MODELS:
        for method in METHODS:
            yield row(model, method)


def page_with(text: str, lines: Iterator[str]) -> str:
    """Return the page's text with other lines between its markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + rest.split(END, 1)[1]


def main(*, check: bool) -> bool:
    """Write the table into the page; return whether it was already there."""
    text = PAGE.read_text(encoding="utf-8")
    new = page_with(text, table())
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    return new == text


if __name__ == "__main__":
    same = main(check="--check" in sys.argv[1:])
    sys.exit(0 if same or "--check" not in sys.argv[1:] else f"{PAGE} is not current: python scripts/memory_by_gpu.py")
