"""Train a control's row with a planted bug, and see which of the plan's claims notice it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from claims import settle
from planned import expand, file_name
from report import circumstances, origin, table

from embrew import build
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


def scores(bug: Bug, plan: dict[str, Any], world: World, data: Path, *, seed: int, work: Path) -> Rows:
    """Return the scores of the bug's row after each stage, named as in the results of its plan."""
    recipe, folder = trained(bug, plan, seed, work)
    found: Rows = {}
    for stage in [stage for stage in recipe.stages if (folder / stage.name).exists()]:
        encoder: Any = build.open_model(str(folder / stage.name))
        if "split" in plan:
            values = accuracies(encoder, world, data / "relations", split=plan["split"], seed=seed)
        else:
            values = {}
            for result in evaluate(encoder, read_suite(plan["suite"]), batch_tokens=BATCH_TOKENS):
                values[result.task] = result.main_score
                for name in plan.get("also", {}).get(result.task, []):
                    values[f"{result.task}: {name}"] = result.scores[name]
        if bug.plan in READABLE and stage.name == "compress":
            values |= measures(folder / stage.name, held_out(data))
        label = f"{bug.row}: {stage.name}" if len(recipe.stages) > 1 else bug.row
        found[label] = {name: [value] for name, value in values.items()}
    return found


def held_out(data: Path, count: int = 64) -> list[str]:
    """Return descriptions that nothing was trained on."""
    texts = [json.loads(line)["text"] for line in (data / "valid.jsonl").read_text().splitlines()]
    return [text for text in texts if "?" not in text][:count]


def noticed_by(claims: Sequence[dict[str, Any]], healthy: Rows, further: Rows, broken: Rows) -> list[str]:
    """Return the claims that hold with the first seed of a control and not with the bug in its place."""
    first = {row: {task: values[:1] for task, values in tasks.items()} for row, tasks in healthy.items()}
    more = {row: {task: values[:1] for task, values in tasks.items()} for row, tasks in further.items()}
    with_bug = {row: {t: v for t, v in broken.get(row, tasks).items() if ": " not in t} for row, tasks in first.items()}
    more_bug = {row: {t: v for t, v in broken.get(row, tasks).items() if ": " in t} for row, tasks in more.items()}
    before, after = settle(claims, first, more), settle(claims, with_bug, more_bug)
    pairs = zip(before, after, strict=True)
    return [one["claim"] for one, other in pairs if one["verdict"] == "holds" and other["verdict"] != "holds"]


def run(names: Sequence[str], plans: Path, world: World, data: Path, *, work: Path, output: Path) -> None:
    """Plant the bugs of these names (default: all) whose plans have results; write `world-bugs.json` and `.md`."""
    kept = output / "world-bugs.json"
    record: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"bugs": {}}
    for bug in BUGS:
        results = output / f"{bug.plan}.json"
        if (names and bug.name not in names) or not results.exists():
            continue
        plan = yaml.safe_load((plans / f"{bug.plan}.yaml").read_text())
        known = json.loads(results.read_text())
        seed = known["seeds"][next(row for row in known["seeds"] if row.startswith(bug.row))][0]
        broken = scores(bug, plan, world, data, seed=seed, work=work / "bugs")
        claims = list(plan["claims"])
        if bug.plan in READABLE:
            claims += READABLE[bug.plan]
            whole = work / bug.plan / file_name(bug.row) / str(seed) / "model" / "compress"
            more = {name: [value] for name, value in measures(whole, held_out(data)).items()}
            known["rows"][f"{bug.row}: compress"] |= more
        noticed = noticed_by(claims, known["rows"], known.get("also", {}), broken)
        healthy = {row: known["rows"].get(row, {}) for row in broken}
        record["bugs"][bug.name] = {
            "plan": bug.plan, "row": bug.row, "seed": seed, "scores": broken, "healthy": healthy, "noticed_by": noticed,
        }  # fmt: skip
        print(bug.name, broken, noticed, flush=True)
    around = circumstances(f"WORLD={data} python benchmarks/small_world.py bugs")
    record = {**around, "bugs": record["bugs"]}
    write_json(kept, record)
    rows = []
    for name, found in record["bugs"].items():
        for row, tasks in found["scores"].items():
            for task, (value,) in tasks.items():
                whole = found["healthy"].get(row, {}).get(task)
                if whole is not None:
                    said = ", ".join(f"{100 * one:.1f}" for one in whole)
                    rows.append([name, row, task, f"{100 * value:.1f}", said])
    verdicts = [[name, "; ".join(found["noticed_by"]) or "**not noticed**"] for name, found in record["bugs"].items()]
    lines = [
        "# Planted bugs in the small world's controls",
        "",
        "Each bug is planted once, in training only, in a control's row with its first seed. A control notices it if a "
        "claim of its plan that holds with this seed no longer does.",
        "",
        *table(["bug", "claims that no longer hold"], verdicts),
        "",
        "Scores times 100, beside those of every seed without the bug:",
        "",
        *table(["bug", "row", "task", "with the bug", "without"], rows),
        "",
        *origin(around),
    ]
    (output / "world-bugs.md").write_text("\n".join(lines) + "\n")
