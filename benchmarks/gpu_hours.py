"""Hours of one GPU that the rows of the plans on SmolLM2 train: `python benchmarks/gpu_hours.py`.

Each row's stages are planned as by `embrew plan RECIPE --gpu 4090 --utilization 0.1`, with the lengths of its data
($EMBREW_DATA, and $REAL of `real_data.py`). A tenth of the peak is assumed, since a model of 135 million parameters
with short texts keeps no GPU busy; scoring is not counted. Claims of the papers that have no verdict yet name these
hours in `benchmarks/evidence.md`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from harness import HERE, circumstances, origin, table, write
from planned import expand

from embrew.planning.plan import plan_recipe
from embrew.recipe import Recipe

COMMAND = "python benchmarks/gpu_hours.py"
GPU, UTILIZATION = "4090", 0.1
PLANS = (
    "real-llm2comp",
    "real-others",
    "real-ese",
    "real-autoregembed",
    "real-lbr",
    "real-epic",
)  # of `docs/orderings.yaml`


def main() -> None:
    """Plan every row, and write the table."""
    rows: dict[str, dict[str, float]] = {}
    for file in (HERE / "plans" / f"{name}.yaml" for name in PLANS):
        plan = yaml.safe_load(file.read_text())
        found, seen = rows.setdefault(file.stem, {}), set[str]()
        for entry in plan.get("rows", []):
            key = str([entry["row"], entry.get("stages")])  # entries of further seeds have the same
            if "recipe" in entry and entry.get("stages") != [] and key not in seen:
                seen.add(key)
                found |= _hours(entry, plan, file)
    cells = [[file, row, f"{60 * hours:.1f}"] for file, of_file in rows.items() for row, hours in of_file.items()]
    lines = [
        "# Minutes of one GPU per row and seed",
        "",
        f"Planned, not measured: training on one {GPU} at {UTILIZATION:.0%} of its peak.",
        "",
        *table(["plan", "row", "minutes"], cells),
        "",
    ]
    write(
        "gpu-hours", [*lines, *origin(circumstances(COMMAND))], {"gpu": GPU, "utilization": UTILIZATION, "rows": rows}
    )


def _hours(entry: dict[str, Any], plan: dict[str, Any], file: Path) -> dict[str, float]:
    """Return the hours of a row until the end of each of its stages, under the labels of the results."""
    settings = [expand(setting) for setting in [*plan.get("set", []), *entry.get("set", [])]]
    recipe = Recipe.load(entry["recipe"], settings)
    several = len(recipe.stages) > 1
    if "stages" in entry:
        recipe = recipe.model_copy(update={"stages": [s for s in recipe.stages if s.name in entry["stages"]]})
    if not recipe.stages:  # it is scored untrained
        return {}
    planned = plan_recipe(recipe, gpu=GPU, utilization=UTILIZATION)
    hours, total = {}, 0.0
    for stage in planned.stages:
        assert stage.hours is not None, f"{file.stem}, {entry['row']}: {stage.name} has no number of steps"
        total += stage.hours
        hours[f"{entry['row']}: {stage.name}" if several else entry["row"]] = total
    return hours


if __name__ == "__main__":
    main()
