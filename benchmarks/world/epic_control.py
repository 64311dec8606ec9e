"""Run the plan of EPIC's control: train every row with every seed, and score it under every kind of demonstrations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from claims import settle
from evidence import take_over_results
from harness import circumstances
from planned import expand, file_name, read_plan

from embrew import opening
from embrew.files.writing import write_json
from embrew.recipe import Recipe, build
from embrew.training import stages
from world.demonstrated import accuracies, between_relations
from world.facts import World

PLAN_KEYS = ("title", "split", "set", "rows", "claims")
ROW_KEYS = ("row", "recipe", "set", "seeds")


def recipe_of(entry: dict[str, Any], plan: dict[str, Any], seed: int) -> Recipe:
    """Return the recipe of a row with a seed."""
    settings = [expand(setting) for setting in [*plan.get("set", []), *entry.get("set", [])]]
    return Recipe.load(entry["recipe"], [*settings, f"seed={seed}"])


def score(recipe: Recipe, folder: Path, world: World, data: Path, *, split: str) -> dict[str, float]:
    """Train a recipe in a folder, or go on there, and return its scores, which are kept in `scores-SPLIT.json`.

    Raises:
        SystemExit: the scores that are kept are of another recipe.
    """
    kept, settings = folder / f"scores-{split}.json", recipe.stage_hash(len(recipe.stages) - 1)
    if kept.exists():
        read = json.loads(kept.read_text())
        if read["recipe"] != settings:
            raise SystemExit(f"{kept} has scores of another recipe; remove {folder}, or give the row another name")
        return dict(read["scores"])
    take_over_results(recipe, folder, folder.parents[1])
    stages.train(recipe, folder / "model", resume=(folder / "model").exists())
    encoder: Any = opening.open_model(str(folder / "model" / recipe.stages[-1].name))
    found = accuracies(encoder, world, data / "relations", split=split, seed=recipe.seed)
    write_json(kept, {"recipe": settings, "scores": found})
    return found


def before_training(recipe: Recipe, world: World) -> dict[str, float]:
    """Return how much of the variance of embeddings lies between relations before training.

    `passages`; `lone words`, the values' words without a sentence; `random`, what random vectors would have.
    """
    encoder = build.encoder(recipe).eval()
    return {
        "passages": between_relations(encoder, world),
        "lone words": between_relations(encoder, world, alone=True),
        "random": (len(world.relations) - 1) / (len(world.relations) * world.sizes.values - 1),
    }


def run(plan_file: Path, world: World, data: Path, *, work: Path, output: Path, only: str = "") -> None:
    """Run what is left of a plan and write `PLAN.json`.

    With `only`, a pattern of `ROW, seed N`, other rows are taken as far as they are finished.
    """
    plan = read_plan(plan_file, PLAN_KEYS, ROW_KEYS)
    values: dict[str, dict[str, list[float]]] = {}
    seeds: dict[str, list[int]] = {}
    missing: list[str] = []
    for entry in plan["rows"]:
        for seed in entry["seeds"]:
            folder = work / plan_file.stem / file_name(entry["row"]) / str(seed)
            finished = (folder / f"scores-{plan['split']}.json").exists()
            if not finished and not re.search(only, f"{entry['row']}, seed {seed}"):
                missing.append(f"{entry['row']} (seed {seed})")
                continue
            found = score(recipe_of(entry, plan, seed), folder, world, data, split=plan["split"])
            print(entry["row"], seed, {name: round(100 * value, 1) for name, value in found.items()}, flush=True)
            for name, value in found.items():
                values.setdefault(entry["row"], {}).setdefault(name, []).append(value)
            seeds.setdefault(entry["row"], []).append(seed)
    settled = settle(plan.get("claims", []), values, {}, seeds)
    around = circumstances(f"WORLD={data} python benchmarks/small_world.py epic {plan_file}")
    start = before_training(recipe_of(plan["rows"][0], plan, plan["rows"][0]["seeds"][0]), world)
    record = {"title": plan["title"], "split": plan["split"], **around, "rows": values, "seeds": seeds, "start": start}
    output.mkdir(parents=True, exist_ok=True)
    absent = {"missing": missing} if missing else {}
    write_json(output / f"{plan_file.stem}.json", {**record, **absent, "claims": settled})
