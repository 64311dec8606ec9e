"""Train the rows of a plan and score them at every depth and size: `python benchmarks/surfaces.py PLAN.yaml`.

A row is a recipe with settings, trained once for each of its seeds; its scores over layers and dimensions
(`embrew analyze surface`) are kept in `runs/evidence/NAME/`, and what is finished there is not done again, so that a
plan can be stopped and given again. The tables go to `benchmarks/results/NAME.md` and `.json`, the heat maps to
`NAME.svg`, t-SNE of whole and truncated vectors to `NAME-tsne.png`.

Keys of a plan:
    title, suite: as in `evidence.py`; only the suite's STS tasks in `average` are judged.
    average: the name of an average of the suite.
    dims: dimensions to score at.
    size: the smaller embedding size that the tables look at.
    score: the first layer that reaches it, at all dimensions, is named.
    against: the row that all others are tested against, example by example, at half the depth and `size`.
    drawn: rows that have a heat map, and whose first seed is tested and drawn by t-SNE.
    texts: data whose texts are drawn by t-SNE.
    dtype: of judging; training is float32.
    set, rows: as in `evidence.py`; a recipe without stages is judged as it is.
    trained: settings of all rows that are trained.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from planned import cell, expand, file_name, parser_of_rows, read_plan
from report import circumstances, origin, table

from embrew import build
from embrew.analysis import read_texts, surface_plots, truncation_of, vector_chunks
from embrew.analysis.surface import Surface
from embrew.analysis.surface_scores import surface_of
from embrew.analysis.truncation import Truncation
from embrew.evaluation import Result, evaluate, read_suite
from embrew.evaluation.report import read_result
from embrew.evaluation.uncertainty import compare
from embrew.files.writing import atomic_path
from embrew.modeling.cutting import cut
from embrew.modeling.encoder import Encoder
from embrew.recipe import Recipe
from embrew.training import stages
from embrew.training.resuming.reuse import reuse_stages

BATCH_TOKENS = 2048
KEYS = (
    "title",
    "suite",
    "average",
    "dims",
    "size",
    "score",
    "against",
    "drawn",
    "texts",
    "dtype",
    "set",
    "trained",
    "rows",
)
ROW_KEYS = ("row", "recipe", "set", "seeds")
TEXTS = 3000  # drawn by t-SNE


@dataclass(frozen=True)
class Found:
    """One row with one seed: its surface; if it is drawn, its plane and its results at half the depth and `size`."""

    row: str
    seed: int
    surface: Surface
    halved: list[Result]
    plane: Truncation | None


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
        write(arguments.plan, plan, found, missing, arguments.output)


def run(entry: dict[str, Any], seed: int, plan: dict[str, Any], suite: Any, folder: Path, work: Path) -> Found:
    """Train a row with a seed and score it, as far as that is not done."""
    kept, drawn, halved = folder / "surface.json", folder / "plane.npz", folder / "halved"
    draw = entry["row"] in plan["drawn"] and seed == entry.get("seeds", [42])[0]
    if not kept.exists():
        encoder = trained(entry, seed, plan, folder, work)
        folder.mkdir(parents=True, exist_ok=True)
        surface = surface_of(encoder, suite.tasks, dims=plan["dims"], batch_tokens=BATCH_TOKENS)
        if draw:
            small = cut(encoder, num_layers=surface.depth // 2, truncate_dim=plan["size"])
            evaluate(small, suite, output_dir=halved, batch_tokens=BATCH_TOKENS, overwrite=True)
            texts = read_texts(Path(expand(plan["texts"])), split="test", max_texts=TEXTS).texts
            made = truncation_of(np.concatenate(list(vector_chunks(encoder, texts))), plan["size"])
            with atomic_path(drawn) as temporary, open(temporary, "wb") as file:
                np.savez(file, whole=made.whole, truncated=made.truncated, sizes=np.array([made.dim, made.width]))
        with atomic_path(kept) as temporary:  # last, since it says that all is there
            temporary.write_text(json.dumps(surface.summary()) + "\n")
    read = json.loads(kept.read_text())
    surface = Surface(
        tuple(read["layers"]),
        tuple(read["dims"]),
        suite.tasks,
        np.array([task["scores"] for task in read["tasks"]]),
        tuple(read["milliseconds"]),
        read["texts"],
    )
    results = [read_result(path.with_name(path.name.replace(".run", "")))[0] for path in halved.glob("*.run.json")]
    plane = None
    if draw:
        with np.load(drawn) as arrays:
            dim, width = arrays["sizes"].tolist()
            plane = Truncation(arrays["whole"], arrays["truncated"], dim, width)
    return Found(entry["row"], seed, surface, results, plane)


def trained(entry: dict[str, Any], seed: int, plan: dict[str, Any], folder: Path, work: Path) -> Encoder:
    """A row's encoder after its last stage, or as it is."""
    settings = [expand(setting) for setting in [*plan.get("set", []), *entry.get("set", [])]]
    if Recipe.load(entry["recipe"]).stages:
        settings += plan.get("trained", [])
    recipe = Recipe.load(entry["recipe"], [*settings, f"seed={seed}"])
    if not recipe.stages:
        return build.open_model(entry["recipe"], settings, dtype=plan["dtype"])  # type: ignore[return-value]
    reuse_stages(recipe, folder / "model", sorted(work.glob("*/*/*/model")))
    stages.train(recipe, folder / "model", resume=(folder / "model").exists())
    return build.open_model(str(folder / "model" / recipe.stages[-1].name), dtype=plan["dtype"])  # type: ignore[return-value]


def figures(found: Found, plan: dict[str, Any]) -> dict[str, float]:
    """What the table says of one row and seed, scores times 100."""
    surface, size = found.surface, plan["size"]
    small, half = surface.dims.index(size), surface.layers.index(surface.depth // 2)
    means = 100 * surface.means
    shallow, shallow_small = surface.shallow_average(), surface.shallow_average(size)
    assert shallow is not None
    assert shallow_small is not None
    reached = [layer for layer, score in zip(surface.layers, means[:, -1], strict=True) if score >= plan["score"]]
    return {
        "last layer": means[-1, -1],
        "≺Avg": 100 * shallow,
        f"last layer, {size} dimensions": means[-1, small],
        f"≺Avg, {size} dimensions": 100 * shallow_small,
        "half the depth": means[half, -1],
        f"half the depth, {size} dimensions": means[half, small],
        f"first layer of {plan['score']}": reached[0] if reached else float("nan"),
        **({"t-SNE distance": 100 * found.plane.share} if found.plane else {}),
    }


def write(plan_file: Path, plan: dict[str, Any], found: list[Found], missing: list[str], folder: Path) -> None:
    """Tables, heat maps and planes."""
    around = circumstances(f"python benchmarks/surfaces.py benchmarks/plans/{plan_file.name}")
    rows: dict[str, list[Found]] = {}
    for one in found:
        rows.setdefault(one.row, []).append(one)
    values = {row: [figures(one, plan) for one in several] for row, several in rows.items()}
    columns = list(next(iter(values.values()))[0])
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
    record = {
        "title": plan["title"],
        "suite": plan["suite"],
        **around,
        "rows": values,
        "seeds": {row: [one.seed for one in several] for row, several in rows.items()},
        "surfaces": {row: [one.surface.summary() for one in several] for row, several in rows.items()},
        "tests": tests,
    }
    name = plan_file.stem
    (folder / f"{name}.json").write_text(json.dumps(record) + "\n")
    drawn = [several[0] for row, several in rows.items() if row in plan["drawn"]]
    lines = [
        f"# {plan['title']}",
        "",
        f"Spearman's correlation times 100, mean over {', '.join(task.name for task in found[0].surface.tasks)}; means "
        "over seeds, ± the standard deviation where there are several. ≺Avg is the mean over all layers but the last.",
        "",
        *table(["", *columns], body),
        "",
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
        surface_plots.plot_surfaces([(one.row, one.surface, None) for one in drawn], folder / f"{name}.svg")
        planes = [(one.row, one.plane) for one in drawn if one.plane]
        surface_plots.plot_truncations(planes, folder / f"{name}-tsne.png")


def pictured(name: str, plan: dict[str, Any], found: Found) -> list[str]:
    """Both pictures."""
    texts = len(found.plane.whole) if found.plane else 0
    return [
        f"![scores over layers and dimensions, time and bytes]({name}.svg)",
        "",
        f"t-SNE distance: of a text's whole vector and its first {plan['size']} dimensions, in percent of the mean "
        f"distance between {texts:,} different texts.",
        "",
        f"![whole and truncated vectors]({name}-tsne.png)",
        "",
    ]


def compared(plan: dict[str, Any], found: Found, tests: dict[str, list[dict[str, float]]]) -> list[str]:
    """Every row's paired tests."""
    return [
        f"`{plan['against']}` less each row, times 100, at half the depth and {plan['size']} dimensions, first seed "
        "(95 % interval and two-sided p by paired bootstrap over a task's pairs):",
        "",
        *table(["", *(task.name for task in found.surface.tasks)], [[row, *said(t)] for row, t in tests.items()]),
        "",
    ]


def tested(rows: dict[str, list[Found]], against: str) -> dict[str, list[dict[str, float]]]:
    """Paired tests of one row, first seed, against every other row's, task by task."""
    if against not in rows:
        return {}
    better = {result.task: result for result in rows[against][0].halved}
    made: dict[str, list[dict[str, float]]] = {}
    for row, several in rows.items():
        if row != against and several[0].halved:
            order = [task.name for task in several[0].surface.tasks]
            worse = {result.task: result for result in several[0].halved}
            differences = [compare(worse[name], better[name]) for name in order]
            made[row] = [vars(difference) for difference in differences if difference is not None]
    return made


def said(differences: list[dict[str, float]]) -> list[str]:
    """Differences in words."""
    return [
        f"{100 * d['difference']:+.1f} ({100 * d['low']:+.1f} to {100 * d['high']:+.1f}, p {d['p_value']:.3f})"
        for d in differences
    ]


if __name__ == "__main__":
    main()
