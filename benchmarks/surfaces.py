"""Train the rows of a plan and score them at every depth and size: `python benchmarks/surfaces.py PLAN.yaml`.

A row is a recipe with settings, trained once for each of its seeds; its scores over layers and dimensions
(`embrew analyze surface`) are kept in `runs/evidence/NAME/`, and what is finished there is not done again, so that a
plan can be stopped and given again. The tables go to `benchmarks/results/NAME.md` and `.json`, the heat maps to
`NAME.png`, t-SNE of whole and truncated vectors to `NAME-tsne.png`.

Keys of a plan:
    title, suite: as in `evidence.py`; only the suite's STS tasks in `average` are judged.
    average: the name of an average of the suite.
    dims: dimensions to score at.
    layers: numbers of layers to score at; the last 12 without it.
    size: the smaller embedding size that the tables look at.
    score: the first layer that reaches it, at all dimensions, is named.
    against: the row that all others are tested against, example by example, at half the depth and `size`.
    drawn: rows that have a heat map, and whose first seed is tested and drawn by t-SNE.
    texts: data whose texts are drawn by t-SNE.
    criterion: columns whose mean chooses among rows that are called `NAME, SETTING`: a setting for each name. Of equal
        ones the first in the plan is taken.
    dtype: of judging; training is float32.
    set, rows: as in `evidence.py`; a recipe without stages is judged as it is.
    trained: settings of all rows that are trained.

A row's `from` is a trained encoder that training starts from; with a recipe without stages, it is judged as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import circumstances, origin, table
from PIL import Image
from planned import cell, check_found, expand, file_name, parser_of_rows, read_plan, started_from
from surface_tables import Found, chosen, compared, criterion, figures, pictured, terms_of, tested

from embrew import opening
from embrew.analysis.input_texts import read_texts, vectors_of
from embrew.analysis.plots import plot_surfaces, plot_truncations
from embrew.analysis.surface import Surface, Truncation, surface_of, truncation_of
from embrew.cutting import cut
from embrew.encoder import Encoder
from embrew.evaluation import evaluate, read_suite
from embrew.evaluation.results import read_result
from embrew.files.writing import atomic_path
from embrew.recipe import Recipe
from embrew.sweep.reuse import reuse_stages
from embrew.training import stages
from embrew.training.stage_json import StageSettings

BATCH_TOKENS = 2048
KEYS = (
    "title",
    "suite",
    "average",
    "dims",
    "layers",
    "size",
    "score",
    "against",
    "drawn",
    "texts",
    "criterion",
    "dtype",
    "set",
    "trained",
    "rows",
)
ROW_KEYS = ("row", "recipe", "set", "from", "seeds")
TEXTS = 3000  # drawn by t-SNE


def main() -> None:
    """Run the plan, or what is left of it, and write the tables."""
    arguments = parser_of_rows(__doc__).parse_args()
    plan = read_plan(arguments.plan, KEYS, ROW_KEYS)
    suite = read_suite(plan["suite"])
    wanted = suite.averages[plan["average"]]
    suite = replace(suite, tasks=tuple(task for task in suite.tasks if task.name in wanted), averages={})
    found: list[Found] = []
    missing: list[str] = []
    for entry in plan["rows"]:
        for seed in entry.get("seeds", [42]):
            if arguments.only and not re.search(arguments.only, f"{entry['row']}, seed {seed}"):
                continue
            folder = arguments.work / arguments.plan.stem / file_name(entry["row"]) / str(seed)
            if arguments.finished and not (folder / "surface.json").exists():
                missing.append(f"{entry['row']} (seed {seed})")
                continue
            one = run(entry, seed, plan, suite, folder, arguments.work)
            scores = figures(one, plan)
            print(f"{one.row} (seed {seed}): " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()), flush=True)
            found.append(one)
    if not arguments.only:
        check_found(found, arguments.plan)
        write(arguments.plan, plan, found, missing, arguments.output)


def run(entry: dict[str, Any], seed: int, plan: dict[str, Any], suite: Any, folder: Path, work: Path) -> Found:
    """Train a row with a seed and score it, as far as that is not done."""
    kept, drawn, halved = folder / "surface.json", folder / "plane.npz", folder / "halved"
    draw = entry["row"] in plan["drawn"] and seed == entry.get("seeds", [42])[0]
    if not kept.exists():
        encoder = trained(entry, seed, plan, folder, work)
        folder.mkdir(parents=True, exist_ok=True)
        surface = surface_of(
            encoder, suite.tasks, layers=plan.get("layers"), dims=plan["dims"], batch_tokens=BATCH_TOKENS
        )
        if draw:
            small = cut(encoder, num_layers=surface.layers[-1] // 2, truncate_dim=plan["size"])
            evaluate(small, suite, output_dir=halved, batch_tokens=BATCH_TOKENS, overwrite=True)
            texts = read_texts(Path(expand(plan["texts"])), split="test", max_texts=TEXTS).texts
            made = truncation_of(vectors_of(encoder, texts), plan["size"])
            with atomic_path(drawn) as temporary, open(temporary, "wb") as file:
                np.savez(file, whole=made.full, truncated=made.truncated, sizes=np.array([made.dim, made.width]))
        with atomic_path(kept) as temporary:  # last, since it says that all is there
            temporary.write_text(json.dumps(surface.summary()) + "\n")
    read = json.loads(kept.read_text())
    check_same(read, entry, seed, plan, suite, folder)
    surface = Surface(
        tuple(read["layers"]),
        tuple(read["dims"]),
        suite.tasks,
        np.array([task["scores"] for task in read["tasks"]]),
        tuple(read["milliseconds"]),
        read["texts"],
        tuple(task["size"] for task in read["tasks"]),
    )
    results = [read_result(path.with_name(path.name.replace(".run", ""))) for path in halved.glob("*.run.json")]
    plane = None
    if draw:
        with np.load(drawn) as arrays:
            dim, width = arrays["sizes"].tolist()
            plane = Truncation(arrays["whole"], arrays["truncated"], dim, width)
    return Found(entry["row"], seed, surface, results, plane, terms_of(folder / "model"))


def recipe_of(entry: dict[str, Any], seed: int, plan: dict[str, Any]) -> tuple[Recipe, list[str]]:
    """A row's recipe with a seed, and its settings."""
    settings = [expand(setting) for setting in [*plan.get("set", []), *entry.get("set", [])]]
    if Recipe.load(entry["recipe"]).stages:
        settings += plan.get("trained", [])
    return Recipe.load(entry["recipe"], [*settings, f"seed={seed}"]), settings


def check_same(read: Any, entry: dict[str, Any], seed: int, plan: dict[str, Any], suite: Any, folder: Path) -> None:
    """Raise where scores that are kept are of other dimensions, tasks or stages than the plan's."""
    dims = sorted({*plan["dims"], max(read["dims"])})  # all dimensions are always scored too
    kept = {"dims": read["dims"], "tasks": [task["task"] for task in read["tasks"]]}
    wanted = {"dims": dims, "tasks": [task.name for task in suite.tasks]}
    if kept != wanted:
        raise SystemExit(f"{folder} has scores of {kept}, the plan asks for {wanted}; remove the folder")
    recipe, _ = recipe_of(entry, seed, plan)
    settings = StageSettings(recipe, folder / "model", started_from(entry))
    for number, stage in enumerate(recipe.stages):
        if not settings.holds(folder / "model" / stage.name, number):
            raise SystemExit(
                f"{folder} has scores and not the stage {stage.name!r} that they are of; remove the folder"
            )


def trained(entry: dict[str, Any], seed: int, plan: dict[str, Any], folder: Path, work: Path) -> Encoder:
    """A row's encoder after its last stage, or as it is."""
    recipe, settings = recipe_of(entry, seed, plan)
    start = started_from(entry)
    if not recipe.stages and start is None:
        return opening.open_model(entry["recipe"], settings, dtype=plan["dtype"])  # type: ignore[return-value]
    if recipe.stages and start is None:
        reuse_stages(recipe, folder / "model", sorted(work.glob("*/*/*/model")))
    if recipe.stages:
        stages.train(recipe, folder / "model", resume=(folder / "model").exists(), start=start)
    ended = folder / "model" / recipe.stages[-1].name if recipe.stages else start
    return opening.open_model(str(ended), dtype=plan["dtype"])  # type: ignore[return-value]


def write(plan_file: Path, plan: dict[str, Any], found: list[Found], missing: list[str], folder: Path) -> None:
    """Tables, heat maps and planes."""
    around = circumstances(f"python benchmarks/surfaces.py benchmarks/plans/{plan_file.name}")
    rows: dict[str, list[Found]] = {}
    for one in found:
        rows.setdefault(one.row, []).append(one)
    values = {row: [figures(one, plan) for one in several] for row, several in rows.items()}
    columns = list(dict.fromkeys(column for several in values.values() for one in several for column in one))
    body = [
        [
            row,
            *(
                cell([one[column] for one in several if column in one], digits=0 if "layer of" in column else 2)
                for column in columns
            ),
        ]
        for row, several in values.items()
    ]
    tests = tested(rows, plan["against"])
    best = chosen(values, plan) if plan.get("criterion") else {}
    record = {
        "title": plan["title"],
        "suite": plan["suite"],
        **around,
        "rows": values,
        "seeds": {row: [one.seed for one in several] for row, several in rows.items()},
        "surfaces": {row: [one.surface.summary() for one in several] for row, several in rows.items()},
        "tests": tests,
        **({"chosen": best} if best else {}),
    }
    name = plan_file.stem
    (folder / f"{name}.json").write_text(json.dumps(record) + "\n")
    drawn = [several[0] for row, several in rows.items() if row in plan["drawn"]]
    lines = [
        f"# {plan['title']}",
        "",
        f"Spearman's correlation times 100, mean over {', '.join(task.name for task in found[0].surface.tasks)}; means "
        "over seeds, ± the standard deviation where there are several. ≺Avg: the mean over the last twelve layers "
        "(or all, where there are fewer) without the last one.",
        "",
        *table(["", *columns], body),
        "",
        *([f"Chosen by {criterion(plan)}: {'; '.join(best.values())}.", ""] if best else []),
        *(pictured(name, plan, drawn[0]) if drawn else []),
        *(compared(plan, found[0], tests) if tests else []),
        *origin(around),
        f"- settings of all rows: {', '.join(plan.get('set', [])) or 'none'}",
        f"- settings of trained rows: {', '.join(plan.get('trained', [])) or 'none'}",
        *([f"- in the plan and not measured yet: {', '.join(missing)}"] if missing else []),
        f"- seeds: {sorted({one.seed for one in found})}",
    ]
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
    if drawn:
        heat_maps, points = folder / f"{name}.png", folder / f"{name}-tsne.png"
        plot_surfaces([(one.row, one.surface, None) for one in drawn], heat_maps)
        plot_truncations([(one.row, one.plane) for one in drawn if one.plane], points)
        make_smaller(heat_maps, 64)
        make_smaller(points, 32, size=0.6, method=Image.Quantize.MAXCOVERAGE)


def make_smaller(
    path: Path, colours: int, *, size: float = 1, method: Image.Quantize = Image.Quantize.MEDIANCUT
) -> None:
    """Rewrite a picture with a palette of that many colours, and with both sides multiplied by `size`."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    image = image.resize((round(size * image.width), round(size * image.height)), Image.Resampling.LANCZOS)
    image.quantize(colours, method=method, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
