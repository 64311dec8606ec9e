"""Train and judge the rows of a plan: `python benchmarks/evidence.py benchmarks/plans/NAME.yaml`.

A row is a recipe with settings, judged on the plan's suite after each of its stages (an untrained recipe: as it is),
once for each of its seeds. Everything is kept in `runs/evidence/NAME/`; what is finished there is not done again, so
that a plan can be stopped and given again, and its parts can run beside each other (`--only`). A stage that another row
or plan has trained with the same settings is taken over. The table goes to `benchmarks/results/NAME.md` and `.json`;
`--finished` keeps what that table has of rows that were run elsewhere with the plan's settings.

`also`, in a plan, names further scores of its tasks, which are shown in a table of their own. `claims` says before the
runs what is expected; see `claims.py`. Stages that measure the share of the gap closed have a table of it, and claims
may name `gap: share` and `gap: other` (another text's memory). `texts` are those of `collapse.py`.
`page` names the page that shows the results in tables of `docs/tables.yaml`; without it, they get a page of their own.

Keys of a row:
    row: its name; entries of one name are one row of the table.
    recipe, set: what is trained or judged; `set` holds overrides.
    model: in their place, a folder that is judged as it is.
    from: a trained encoder that the first of the stages starts from, in place of the language model; several seeds of a
        later stage then share what came before.
    seeds: [42] without it.
    stages: train only these of the recipe; with none, it is judged untrained.
    judge: judge only after these.
    shots: judge with so many demonstrations of each task, one row of the table each (0: its instruction alone); the
        suite's instructions are then put in the form `prompt` ("{instruction}: " without it).
    demonstrations: kinds of the shots above 0, one row of the table each: `right` (without it), `shuffled`; see
        `shots.py`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from evidence_tables import Earlier, Judged, gap_of, write
from planned import check_found, expand, file_name, parser_of_rows, read_plan, started_from
from shots import judge_shown

from embrew import opening
from embrew.encoder import Encoder
from embrew.evaluation import Result, averages, evaluate, read_suite
from embrew.recipe import Recipe, build
from embrew.sweep.reuse import reuse_stages
from embrew.text_encoder import model_hash
from embrew.training import stages
from embrew.training.stage_json import StageSettings

BATCH_TOKENS = 2048
PLAN_KEYS = ("title", "suite", "set", "rows", "dtype", "texts", "also", "claims", "page")
ROW_KEYS = (
    "row",
    "recipe",
    "set",
    "model",
    "from",
    "seeds",
    "stages",
    "judge",
    "shots",
    "prompt",
    "demonstrations",
)


def main() -> None:
    """Run the plan, or what is left of it, and write the table."""
    arguments = parser_of_rows(__doc__).parse_args()
    plan = read_plan(arguments.plan, PLAN_KEYS, ROW_KEYS)
    check_claims(plan)
    suite = read_suite(plan["suite"])
    work = arguments.work / arguments.plan.stem
    judged: list[Judged] = []
    table = arguments.output / f"{arguments.plan.stem}.json"
    earlier = Earlier(table, plan, [task.name for task in suite.tasks]) if arguments.finished else None
    for entry in plan["rows"]:
        for found in run(entry, plan, suite, work, arguments.only, earlier):
            kinds = " ".join(f"{name} {100 * mean:.1f}" for name, mean in found.averages.items())
            print(f"{found.row} (seed {found.seed}): {kinds}", flush=True)
            judged.append(found)
    if not arguments.only:
        check_found(judged, arguments.plan)
        write(arguments.plan, plan, judged, earlier.missing if earlier else [], arguments.output)


def run(
    entry: dict[str, Any],
    plan: dict[str, Any],
    suite: Any,
    work: Path,
    only: str | None,
    earlier: Earlier | None,
) -> Iterator[Judged]:
    """Train a row's recipe with each seed and judge it after each stage, in the dtype of the plan.

    With an earlier table, nothing is trained or judged, and what is not there is taken from it.
    """
    dtype = plan.get("dtype", "auto")
    place = work / file_name(entry["row"])
    settings = [expand(setting) for setting in [*plan.get("set", []), *entry.get("set", [])]]
    for seed in entry.get("seeds", [0 if "model" in entry else 42]):
        if only and not re.search(
            only, f"{entry['row']}, seed {seed}, until {(entry.get('stages') or ['the end'])[-1]}"
        ):
            continue
        if "model" in entry:
            if earlier and not complete(place / "results", suite):
                if found := earlier.find(entry["row"], seed, settings_of(entry), seeded=False, drawn=False):
                    yield found
                continue
            peer: Any = opening.open_model(expand(entry["model"]), dtype=dtype)
            results = judge(peer, suite, place / "results")
            yield judged_of(entry["row"], seed, model_hash(peer), results, entry, plan, drawn=False)
            continue
        recipe = Recipe.load(entry["recipe"], [*settings, f"seed={seed}"])
        several = len(recipe.stages) > 1
        if "stages" in entry:
            kept = [stage for stage in recipe.stages if stage.name in entry["stages"]]
            recipe = recipe.model_copy(update={"stages": kept})
        folder = place / str(seed)
        if recipe.stages and not earlier:
            start = started_from(entry)
            if start is None:
                take_over_results(recipe, folder, work)
            stages.train(recipe, folder / "model", resume=(folder / "model").exists(), start=start)
        for name in [stage.name for stage in recipe.stages] or ["untrained"]:
            if name in entry.get("judge", [name]):
                label = f"{entry['row']}: {name}" if several else entry["row"]
                yield from judge_stage(entry, plan, suite, recipe, folder, name, label, earlier)


def judge_stage(
    entry: dict[str, Any],
    plan: dict[str, Any],
    suite: Any,
    recipe: Recipe,
    folder: Path,
    name: str,
    label: str,
    earlier: Earlier | None,
) -> Iterator[Judged]:
    """Judge what a row's folder has after a stage, or its untrained encoder, in each way that the row asks for."""
    dtype = plan.get("dtype", "auto")
    encoder: Any = None
    facts = {
        "drawn": bool(recipe.stages),
        "compresses": any(one.name == name and one.objective["type"] == "compression" for one in recipe.stages),
    }
    for count, condition in ways(entry):
        said = said_of(count, condition)
        results_folder = folder / "results" / (name + file_name(said))
        if earlier and not (complete(results_folder, suite) and trained(entry, recipe, folder, name)):
            if kept := earlier.find(label + said, recipe.seed, settings_of(entry), **facts):
                yield kept
            continue
        if encoder is None and recipe.stages:  # its adapter is merged where rounding takes little of it
            encoder = Encoder.from_pretrained(folder / "model" / name, dtype=dtype)
        elif encoder is None:
            untrained = recipe.encoder.model_copy(update={"dtype": dtype})
            encoder = build.encoder(recipe.model_copy(update={"encoder": untrained}))
        backbone = encoder.describe()["base"]["sha256"] or "unknown"
        to, form = partial(judge, folder=results_folder), entry.get("prompt", "{instruction}: ")
        found = to(encoder, suite) if count is None else judge_shown(encoder, form, suite, count, condition, to)
        gap = gap_of(folder / "model", name)
        yield judged_of(label + said, recipe.seed, backbone, found, entry, plan, gap=gap, **facts)


def judged_of(
    row: str, seed: int, backbone: str, results: list[Result], entry: dict[str, Any], plan: dict[str, Any], **facts: Any
) -> Judged:
    """A row of the table, of the suite's results."""
    scores = {result.task: result.scores for result in results}
    further = {f"{task}: {name}": scores[task][name] for task, some in plan.get("also", {}).items() for name in some}
    tasks = {result.task: result.main_score for result in results}
    return Judged(row, seed, backbone, averages(results), tasks, further, settings_of(entry), results=results, **facts)


def settings_of(entry: dict[str, Any]) -> dict[str, Any]:
    """What decides what an entry's row is; its name decides stages, demonstrations and their number."""
    return {key: entry[key] for key in ("recipe", "set", "model", "from", "prompt") if entry.get(key)}


def ways(entry: dict[str, Any]) -> Iterator[tuple[int | None, str]]:
    """Number and kind of demonstrations of each judging of a row."""
    for count in entry.get("shots", [None]):
        for condition in entry.get("demonstrations", ["right"]) if count else ["right"]:
            yield count, condition


def said_of(count: int | None, condition: str) -> str:
    """What the name of a row says of a judging."""
    said = "" if count is None else f", {count} shots"
    return said + ("" if condition == "right" else f", {condition}")


def check_claims(plan: dict[str, Any]) -> None:
    """Raise SystemExit where a claim names a row that the plan's table will not have, or entries of a row differ."""
    names = names_of(plan)
    named = {
        row for claim in plan.get("claims", []) for row in (claim["better"], claim["than"]) if isinstance(row, str)
    }
    if unknown := sorted(named - names):
        raise SystemExit(f"claims name {', '.join(unknown)}; the table will have {', '.join(sorted(names))}")


def names_of(plan: dict[str, Any]) -> set[str]:
    """The rows that a plan's table will have.

    Raises:
        SystemExit: entries of one row have different settings.
    """
    names: set[str] = set()
    made: dict[str, Any] = {}
    for entry in plan["rows"]:
        if made.setdefault(entry["row"], settings_of(entry)) != settings_of(entry):
            raise SystemExit(f"the entries of row {entry['row']!r} have different settings; give them different names")
        if "model" in entry:
            names.add(entry["row"])
            continue
        recipe = Recipe.load(entry["recipe"], [expand(one) for one in [*plan.get("set", []), *entry.get("set", [])]])
        kept = [stage.name for stage in recipe.stages if stage.name in entry.get("stages", [stage.name])]
        for stage in kept or ["untrained"]:
            label = f"{entry['row']}: {stage}" if len(recipe.stages) > 1 else entry["row"]
            if stage in entry.get("judge", [stage]):
                names |= {label + said_of(*way) for way in ways(entry)}
    return names


def trained(entry: dict[str, Any], recipe: Recipe, folder: Path, name: str) -> bool:
    """Whether a row's folder holds a stage, trained with the row's settings; an untrained row has none.

    Raises:
        ValueError: it was trained with other settings.
    """
    settings = StageSettings(recipe, folder / "model", started_from(entry))
    names = [stage.name for stage in recipe.stages]
    return not names or settings.holds(folder / "model" / name, names.index(name))


def complete(folder: Path, suite: Any) -> bool:
    """Whether a folder holds results of all tasks."""
    return all(any(folder.glob(f"{task.name}.*.run.json")) for task in suite.tasks)


def take_over_results(recipe: Recipe, folder: Path, work: Path) -> None:
    """Take over finished stages from any row of any plan with the same settings, and what a row of this plan has."""
    for name, run in reuse_stages(recipe, folder / "model", sorted(work.parent.glob("*/*/*/model"))):
        own = run.is_relative_to(work)  # other plans may have other suites
        for results in (run.parent / "results").glob(f"{name}*") if own else ():
            shutil.copytree(results, folder / "results" / results.name, dirs_exist_ok=True)


def judge(encoder: Any, suite: Any, folder: Path) -> list[Result]:
    """The suite's results, kept in a folder."""
    return evaluate(encoder, suite, output_dir=folder, batch_tokens=BATCH_TOKENS)


if __name__ == "__main__":
    main()
