"""Train a control's row with a planted bug, and see which of the plan's claims notice it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml
from claims import Seeds, settle
from evidence_tables import gap_of
from harness import circumstances
from planned import expand, file_name

from embrew import opening
from embrew.evaluation import evaluate, read_suite
from embrew.files.writing import write_json
from embrew.recipe import Recipe
from embrew.training import stages
from world.bugs import BUGS, Bug
from world.demonstrated import accuracies
from world.facts import World
from world.readable import measures

BATCH_TOKENS = 2048
READABLE = {  # of plans whose first stage trains memories for the original LM
    "world-llm2comp": [
        {
            "claim": "the original language model reads the memory",
            "better": "distillation: compress",
            "than": 30,
            "task": "readable",
        },
        {
            "claim": "it reads it better than the language model with the adapter",
            "better": "distillation: compress",
            "than": 0,
            "task": "for the original LM",
        },
    ]
}
Rows = dict[str, dict[str, list[float]]]


def trained(bug: Bug, plan: dict[str, Any], seed: int, work: Path) -> tuple[Recipe, Path]:
    """Train the bug's row, in its first entry's stages; only training has the bug."""
    entry = next(entry for entry in plan["rows"] if entry["row"] == bug.row)
    settings = [expand(setting) for setting in [*plan.get("set", []), *entry.get("set", [])]]
    recipe = Recipe.load(entry["recipe"], [*settings, f"seed={seed}"])
    kept = [stage for stage in recipe.stages if stage.name in entry.get("stages", [stage.name])]
    folder = work / file_name(bug.name) / str(seed) / "model"
    with bug.planted():
        stages.train(recipe.model_copy(update={"stages": kept}), folder, resume=folder.exists())
    return recipe, folder


def scores(bug: Bug, plan: dict[str, Any], world: World, data: Path, *, seeds: Sequence[int], work: Path) -> Rows:
    """Return the scores of the bug's row after each stage, one a seed, named as in the results of its plan."""
    found: Rows = {}
    for seed in seeds:
        for row, values in _scores(bug, plan, world, data, seed=seed, work=work).items():
            for name, value in values.items():
                found.setdefault(row, {}).setdefault(name, []).append(value)
    return found


def _scores(
    bug: Bug, plan: dict[str, Any], world: World, data: Path, *, seed: int, work: Path
) -> dict[str, dict[str, float]]:
    recipe, folder = trained(bug, plan, seed, work)
    found: dict[str, dict[str, float]] = {}
    for stage in [stage for stage in recipe.stages if (folder / stage.name).exists()]:
        encoder: Any = opening.open_model(str(folder / stage.name))
        if "split" in plan:
            values = accuracies(encoder, world, data / "relations", split=plan["split"], seed=seed)
        else:
            values = {}
            for result in evaluate(encoder, read_suite(plan["suite"]), batch_tokens=BATCH_TOKENS):
                values[result.task] = result.main_score
                for name in plan.get("also", {}).get(result.task, []):
                    values[f"{result.task}: {name}"] = result.scores[name]
        measured = gap_of(folder, stage.name)
        values |= {f"gap: {name}": share for name, share in (measured or {}).items()}
        if bug.plan in READABLE and stage.name == "compress":
            values |= measures(folder / stage.name, held_out(data))
        label = f"{bug.row}: {stage.name}" if len(recipe.stages) > 1 else bug.row
        found[label] = values
    return found


def held_out(data: Path, count: int = 64) -> list[str]:
    """Return descriptions that nothing was trained on."""
    texts = [json.loads(line)["text"] for line in (data / "valid.jsonl").read_text().splitlines()]
    return [text for text in texts if "?" not in text][:count]


def apart_from(work: Path) -> Path:
    """Return where stages with a bug are kept: not below `work`, in which plans look for stages to take over.

    A bug is no setting, so that nothing else would tell such a stage from a sound one.
    """
    return work.with_name(f"{work.name}-bugs")


def noticed_by(
    claims: Sequence[dict[str, Any]],
    healthy: Rows,
    further: Rows,
    broken: Rows,
    seeds: Seeds,
    fixed: Collection[str] = (),
) -> dict[str, int]:
    """Return the claims that hold with every seed of a control, and the number of seeds with which the bug breaks each.

    The bug's scores stand in place of its rows' own; claims that it breaks with no seed are left out.
    """

    def with_bug(rows: Rows, *, also: bool) -> Rows:
        found = {}
        for row, tasks in rows.items():
            found[row] = {name: values for name, values in broken.get(row, tasks).items() if (": " in name) is also}
        return found

    before = settle(claims, healthy, further, seeds, fixed)
    after = settle(claims, with_bug(healthy, also=False), with_bug(further, also=True), seeds, fixed)
    broke = {
        one["claim"]: sum(not difference > float(one.get("by", 0.0)) for difference in other["differences"])
        for one, other in zip(before, after, strict=True)
        if one["verdict"] == "holds"
    }
    return {claim: count for claim, count in broke.items() if count}


def run(names: Sequence[str], plans: Path, world: World, data: Path, *, work: Path, output: Path) -> None:
    """Plant the bugs of these names (default: all) whose plans have results; write `world-bugs.json`."""
    kept = output / "world-bugs.json"
    record: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"bugs": {}}
    for bug in BUGS:
        results = output / f"{bug.plan}.json"
        if (names and bug.name not in names) or not results.exists():
            continue
        plan = yaml.safe_load((plans / f"{bug.plan}.yaml").read_text())
        known = json.loads(results.read_text())
        seeds = known["seeds"][next(row for row in known["seeds"] if row.startswith(bug.row))]
        broken = scores(bug, plan, world, data, seeds=seeds, work=apart_from(work))
        claims = list(plan["claims"])
        if bug.plan in READABLE:
            claims += READABLE[bug.plan]
            for seed in seeds:
                whole = work / bug.plan / file_name(bug.row) / str(seed) / "model" / "compress"
                for name, value in measures(whole, held_out(data)).items():
                    known["rows"][f"{bug.row}: compress"].setdefault(name, []).append(value)
        further = {row: known.get("also", {}).get(row, {}) | known.get("gap", {}).get(row, {}) for row in known["rows"]}
        fixed = [entry["row"] for entry in plan["rows"] if not Recipe.load(entry["recipe"]).stages]
        noticed = noticed_by(claims, known["rows"], further, broken, known["seeds"], fixed)
        healthy = {row: known["rows"].get(row, {}) | further.get(row, {}) for row in broken}
        around = circumstances(f"WORLD={data} python benchmarks/small_world.py bugs")
        record["bugs"][bug.name] = {
            "plan": bug.plan,
            **{name: around[name] for name in ("commit", "dirty", "date")},
            "row": bug.row,
            "seeds": seeds,
            "scores": broken,
            "healthy": healthy,
            "noticed_by": noticed,
        }
        print(bug.name, broken, noticed, flush=True)
    around = circumstances(f"WORLD={data} python benchmarks/small_world.py bugs")
    write_json(kept, {**around, "bugs": record["bugs"]})
