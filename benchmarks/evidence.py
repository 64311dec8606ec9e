"""Train and judge the rows of a plan: `python benchmarks/evidence.py benchmarks/plans/NAME.yaml`.

A row is a recipe with settings, judged on the plan's suite after each of its stages (an untrained recipe: as it is),
once for each of its seeds. Everything is kept in `runs/evidence/NAME/`; what is finished there is not done again, so
that a plan can be stopped and given again. The table goes to `benchmarks/results/NAME.md` and `.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from harness import RESULTS
from report import circumstances

from embrew import build
from embrew.evaluation import Result, averages, evaluate, read_suite
from embrew.modeling.encoder import Encoder
from embrew.protocol import model_hash
from embrew.recipe import Recipe
from embrew.training import stages


@dataclass(frozen=True)
class Judged:
    """One row after one stage with one seed."""

    row: str
    seed: int
    backbone: str
    results: list[Result]


def main() -> None:
    """Run the plan, or what is left of it, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--only", help="a pattern of the rows to run; the table is written when all are there")
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    plan = yaml.safe_load(arguments.plan.read_text())
    unknown = set(plan) - {"title", "suite", "set", "rows"}
    if unknown:
        parser.error(f"{arguments.plan}: unknown keys {', '.join(sorted(unknown))}")
    suite = read_suite(plan["suite"])
    work = arguments.work / arguments.plan.stem
    judged = []
    for entry in plan["rows"]:
        if arguments.only and not re.search(arguments.only, entry["row"]):
            continue
        for found in run({**entry, "set": [*plan.get("set", []), *entry.get("set", [])]}, suite, work):
            kinds = " ".join(f"{name} {100 * mean:.1f}" for name, mean in averages(found.results).items())
            print(f"{found.row} (seed {found.seed}): {kinds}", flush=True)
            judged.append(found)
    if not arguments.only:
        write(arguments.plan, plan, judged, arguments.output)


def run(entry: dict[str, Any], suite: Any, work: Path) -> Iterator[Judged]:
    """Train a row's recipe with each seed and judge it after each stage; a row's `model` is judged as it is."""
    place = work / re.sub(r"[^A-Za-z0-9]+", "-", entry["row"]).strip("-")
    if "model" in entry:
        peer = build.open_model(expand(entry["model"]))
        results = evaluate(peer, suite, output_dir=place / "results", batch_tokens=8192)
        yield Judged(entry["row"], 0, model_hash(peer), results)
        return
    settings = [expand(setting) for setting in entry["set"]]
    for seed in entry.get("seeds", [42]):
        recipe = Recipe.load(entry["recipe"], [*settings, f"seed={seed}"])
        folder = place / str(seed)
        if recipe.stages:
            stages.train(recipe, folder / "model", resume=(folder / "model").exists())
        for name in [stage.name for stage in recipe.stages] or ["untrained"]:
            encoder = Encoder.from_pretrained(folder / "model" / name) if recipe.stages else build.encoder(recipe)
            results = evaluate(encoder, suite, output_dir=folder / "results" / name, batch_tokens=8192)
            label = entry["row"] if len(recipe.stages) < 2 else f"{entry['row']}: {name}"
            yield Judged(label, seed, encoder.describe()["base"]["sha256"] or "unknown", results)


def expand(setting: str) -> str:
    """A setting with environment variables filled in."""
    for name in re.findall(r"\$(\w+)", setting):
        if name not in os.environ:
            raise SystemExit(f"{setting}: the environment variable {name} is not set")
    return os.path.expandvars(setting)


def write(plan_file: Path, plan: dict[str, Any], judged: list[Judged], folder: Path) -> None:
    """One Markdown and one JSON file: a row's means over seeds, with the standard deviation where there are several."""
    around = circumstances(f"python benchmarks/evidence.py benchmarks/plans/{plan_file.name}")
    rows: dict[str, list[Judged]] = {}
    for found in judged:
        rows.setdefault(found.row, []).append(found)
    tasks = [result.task for result in judged[0].results]
    columns = [*averages(judged[0].results), *tasks]
    values = {
        row: {column: [scores(found)[column] for found in several] for column in columns}
        for row, several in rows.items()
    }
    record = {"title": plan["title"], "suite": plan["suite"], **around, "rows": values}
    record["backbones"] = {row: several[0].backbone for row, several in rows.items()}
    record["seeds"] = {row: [found.seed for found in several] for row, several in rows.items()}
    (folder / f"{plan_file.stem}.json").write_text(json.dumps(record, indent=2) + "\n")
    means = list(averages(judged[0].results))
    hardware = around["hardware"]
    lines = [
        f"# {plan['title']}",
        "",
        f"Scores times 100 on the suite `{plan['suite']}`; means over seeds, ± the standard deviation where there are "
        "several.",
        "",
        *grid(values, means),
        "",
        *grid(values, tasks),
        "",
        "- backbones, sha256: " + "; ".join(f"{row}: {several[0].backbone[:12]}" for row, several in rows.items()),
        f"- command: `{around['command']}`",
        f"- commit: {around['commit']}" + (" with changes" if around["dirty"] else ""),
        f"- hardware: {hardware['processor']}, {hardware['cores']} cores, GPU: {hardware['gpu'] or 'none'}",
        f"- settings of all rows: {', '.join(plan.get('set', [])) or 'none'}",
        f"- seeds: {sorted({found.seed for found in judged})}, {around['date']}",
    ]
    (folder / f"{plan_file.stem}.md").write_text("\n".join(lines) + "\n")


def grid(values: dict[str, dict[str, list[float]]], columns: list[str]) -> list[str]:
    """A Markdown table of some columns."""
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row, numbers in values.items():
        lines.append(f"| {row} | " + " | ".join(cell(numbers[column]) for column in columns) + " |")
    return lines


def cell(numbers: list[float]) -> str:
    """A mean, with the standard deviation of several seeds."""
    mean = f"{100 * statistics.fmean(numbers):.1f}"
    return mean if len(numbers) < 2 else f"{mean} ± {100 * statistics.stdev(numbers):.1f}"


def scores(found: Judged) -> dict[str, float]:
    """Averages and tasks by name."""
    return {**averages(found.results), **{result.task: result.main_score for result in found.results}}


if __name__ == "__main__":
    main()
