"""The demonstration: a causal LM becomes a search engine for Python documentation, on this machine, offline.

`python -m embrew.demo --output runs/demo` collects the documentation of the Python packages installed here, trains
LLM2Comp on it (compress, unsupervised, supervised), scores every step on packages it has never seen, exports the
result and searches with it. A stopped run resumes when the command is given again.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from embrew.cli.console import log_to_terminal
from embrew.files.checksums import is_intact
from embrew.files.formats import RUN
from embrew.files.reading import read_json
from embrew.files.sealed import sealed
from embrew.files.writing import write_json
from embrew.harvest import harvest
from embrew.inspection import command
from embrew.progress import is_chosen
from embrew.threads import set_threads

if TYPE_CHECKING:
    from embrew.encoder import Encoder
    from embrew.evaluation import Result
    from embrew.recipe import Recipe
    from embrew.recipe.overrides import Override

RECIPE = "llm2comp/nano"
BASELINES = {"last token": "baselines/last-token", "mean": "baselines/mean"}
DOCUMENTS = {"test": 400, "dev": 100, "train": 120}  # of a package, at most
QUESTIONS = (
    "How do I find the shortest path between two nodes?",
    "split data into training and test sets",
    "print text in colour on a terminal",
)
"""Searched in the test packages' documentation (networkx, scikit-learn, rich, pydantic, fsspec)."""
FEWEST = 0.25
"""The smallest share of the steps: nDCG@10 is about 0.3 after it, 0.4 after all steps, 0.05 untrained."""
MINUTES = 5.0
ABOUT = 6.0  # minutes in which all steps are trained nevertheless: the estimate is not more exact
# Costs in steps of `measured_step`, by the time of two runs; those of training by optimiser step and stage.
PARTS = 566.0
TRAINING_STEP = {"compress": 2.4, "unsupervised": 4.6, "supervised": 7.6}
OTHER_STEP = 4.0
ALL = 'make demo ARGS="--full --fresh"'


def main() -> None:
    """Run the demonstration from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m embrew.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/demo"), help="folder of all results (default: runs/demo)"
    )
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--quick", action="store_true", help="train a quarter of the recipe's steps")
    steps.add_argument("--full", action="store_true", help="train all steps, however long that takes")
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier run left in the folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe")
    arguments = parser.parse_args()
    set_threads()  # before torch is imported
    log_to_terminal()
    share = FEWEST if arguments.quick else 1.0 if arguments.full else None
    if arguments.fresh:
        shutil.rmtree(arguments.output, ignore_errors=True)
    began = time.perf_counter()
    try:
        run(arguments.output, tuple(arguments.overrides), share)
    except ValueError as error:
        raise SystemExit(f"Error: {error}") from None
    Console().print(f"\n{(time.perf_counter() - began) / 60:.1f} minutes")


def run(output: Path, overrides: tuple[Override, ...] = (), share: float | None = None) -> list[dict[str, Any]]:
    """Run the whole demonstration in one folder.

    Writes `steps.json` (the share of the steps), `data/`, `model/` (the stages), `export/` (Sentence-Transformers),
    `index/`, `results/`, `table.md`, `scores.png`. What an earlier run has finished there is reused.

    Args:
        overrides: settings of the recipe.
        share: of the recipe's steps; None: what five minutes allow, at least a quarter, or all where `overrides` set
            numbers of steps.

    Returns:
        The rows of the table.

    Raises:
        ValueError: the folder was begun with another share.
    """
    from embrew.encoder import Encoder
    from embrew.evaluation.report import size_of
    from embrew.export.exporting import export_encoder
    from embrew.recipe import build
    from embrew.recipe.overrides import parse_override

    console, data = Console(highlight=False), output / "data"
    changes = (*own_data(data), *overrides)
    shipped = build.load_recipe(RECIPE, changes)
    console.print(f"embrew's demonstration, offline, in {output}; stopped, the same command resumes it", markup=False)
    step = measured_step()
    if share is None and any(parse_override(override)[0][-1] == "max_steps" for override in overrides):
        share = share_of(output) or 1.0
    asked, share = share, chosen_share(shipped, output, step, share)
    about, how_many = minutes(shipped, step, share), "all steps" if share == 1 else f"{share:.0%} of the steps"
    console.print(f"   about {about:.0f} min on this machine, with {how_many} of training")
    if asked is None and share == FEWEST and about > MINUTES:
        console.print("   five minutes are not enough at its current load: the demonstration trains its fewest steps")
    recipe = build.load_recipe(RECIPE, [*changes, *fewer_steps(shipped, share)])

    console.print("[bold]1. Data[/]: the documentation of the Python packages installed here")
    console.print(f"   {_collect(data)}")

    console.print("[bold]2. Before[/]: the untrained model with two kinds of pooling")
    rows = []
    for label, baseline in BASELINES.items():
        result = _score(_untrained(recipe, baseline), output, label.replace(" ", "-"))
        rows.append(_row(f"{recipe.encoder.model}, {label}", result))

    console.print(f"[bold]3. Training[/]: {RECIPE}, stage by stage")
    rows += _train(recipe, build.load_recipe(RECIPE), output)
    title = f"Test split: {size_of(result.counts)} of packages that were not trained on"
    if _steps(recipe) != _steps(build.load_recipe(RECIPE)):
        title += f". Not the recipe's numbers of steps, so not README's figures; for these: {ALL}"
    _show(console, output, rows, title)

    console.print("[bold]4. Export[/]: a stock Sentence-Transformers folder, verified in a fresh process")
    encoder = Encoder.from_pretrained(output / "model")
    export_encoder(encoder, output / "export", overwrite=True, max_length=encoder.max_seq_length)

    console.print("[bold]5. Search[/]: in the unseen packages")
    _search(console, encoder, output)
    _say_what_next(console, output)
    return rows


def own_data(data: Path) -> list[Override]:
    """Return overrides by which the recipe reads the data that are collected in a folder."""
    texts, pairs, dev = (str(data.resolve() / name) for name in ("texts.jsonl", "pairs.jsonl", "dev"))
    short = {"columns": {"text": "query"}, "max_chars": 100}  # first sentences of docstrings, which take less time
    return [
        ("stages.compress.data", {"path": texts, "min_chars": 200, "shuffle_seed": 42}),
        ("stages.unsupervised.data", {"path": pairs, **short, "shuffle_seed": 43}),
        ("stages.supervised.data", {"path": pairs, "shuffle_seed": 44}),
        ("evaluation", {"dev": [dev]}),
    ]


def _collect(data: Path) -> str:
    """Collect the data, and return in words how much there is."""
    if not data.exists() or not is_intact(data):
        harvest(data, max_documents=DOCUMENTS, overwrite=True)
    counts = json.loads((data / "manifest.json").read_text())
    train, test = (sum(each["documents"] for each in counts[part]["packages"].values()) for part in ("train", "test"))
    names = ", ".join(counts["test"]["packages"])
    return f"{train} documents to train on, {test} of other packages to evaluate on ({names})"


def _train(recipe: Recipe, shipped: Recipe, output: Path) -> list[dict[str, Any]]:
    """Train the recipe, and return the scores after each stage; `shipped` is the recipe with all its steps."""
    from embrew.encoder import Encoder
    from embrew.evaluation import evaluate
    from embrew.training.stages import train

    def dev(encoder: Encoder) -> dict[str, float]:
        (result,) = evaluate(encoder, [output / "data" / "dev"], batch_tokens=4096, show_progress_bar=is_chosen())
        return {"dev": result.main_score}

    model = output / "model"
    train(recipe, model, resume=model.exists(), evaluate=dev)
    seconds = read_json(model / RUN.file, kind=RUN)["seconds"]
    all_steps = _steps(shipped)
    rows = []
    for name, steps in _steps(recipe).items():
        result = _score(Encoder.from_pretrained(model / name, dtype="as_trained"), output, name)
        rows.append(_row(f"LLM2Comp: {name} ({steps} of {all_steps.get(name)} steps)", result, seconds[name]))
    return rows


def _search(console: Console, encoder: Encoder, output: Path) -> None:
    """Search the test packages' documentation."""
    from embrew.search import SearchIndex

    index = SearchIndex.build(encoder, output / "data" / "test", batch_tokens=4096, show_progress_bar=is_chosen())
    index.save(output / "index", overwrite=True)
    for question, hits in zip(QUESTIONS, index.search(QUESTIONS, top_k=3), strict=True):
        console.print(f"\n  [bold cyan]{question}[/]")
        for hit in hits:
            first, _, rest = hit.document.content.partition("\n")
            console.print(f"    {hit.score:.2f}  [bold]{escape(first)}[/]  {escape(' '.join(rest.split())[:90])}")


# ---- how many steps ----------------------------------------------------------------------------------------


def measured_step(steps: int = 3) -> float:
    """Return the seconds of one training step of 8 texts of 96 tokens, the shipped model's weights all trained."""
    from embrew.encoder import Encoder

    encoder = Encoder.from_pretrained("nano", device="cpu", dtype="float32", pooling="mean")
    encoder.backbone.train_all()
    tokens = encoder.tokens([" ".join(["Words of a text that is as long as a docstring."] * 12)] * 8, max_length=96)
    encoder(tokens).sum().backward()  # the first one allocates
    began = time.perf_counter()
    for _ in range(steps):
        encoder(tokens).sum().backward()
    return (time.perf_counter() - began) / steps


def minutes(recipe: Recipe, step: float, share: float) -> float:
    """Return the minutes of the whole demonstration with a share of the recipe's steps, if `step` takes that long."""
    trained = (
        stage.training.get("max_steps", 100) * TRAINING_STEP.get(stage.name, OTHER_STEP) for stage in recipe.stages
    )
    return (PARTS + share * sum(trained)) * step / 60


def share_of(output: Path) -> float | None:
    """Return the share of the steps with which a folder was begun; None for a new one."""
    file = output / "steps.json"
    return float(read_json(file, keys=("share",), sealed=True)["share"]) if file.is_file() else None


def chosen_share(recipe: Recipe, output: Path, step: float, share: float | None = None) -> float:
    """Return the share of the recipe's steps to train, and write it into the folder; an earlier run's there stands.

    Args:
        recipe: with all its steps.
        output: folder of the demonstration.
        step: seconds of `measured_step`.
        share: the user's choice; None: what five minutes allow, at least `FEWEST`.

    Raises:
        ValueError: the folder was begun with another share.
    """
    earlier = share_of(output)
    if earlier is not None and share not in (None, earlier):
        raise ValueError(
            f"{output} was begun with {earlier:.0%} of the steps, and {share:.0%} are asked for; leave --quick and "
            "--full out to resume it, or add --fresh to remove it and begin anew"
        )
    most, least = (minutes(recipe, step, part) for part in (1.0, FEWEST))
    part = 1.0 if most <= ABOUT else max(0.0, (MINUTES - least) / (most - least))
    chosen = earlier or share or math.floor(100 * (FEWEST + (1 - FEWEST) * part)) / 100
    write_json(output / "steps.json", sealed({"share": chosen}))
    return chosen


def fewer_steps(recipe: Recipe, share: float) -> list[Override]:
    """Return overrides by which each stage trains a share of its steps, at least one."""
    return [
        (f"stages.{stage.name}.training.{key}", max(1, round(share * stage.training[key])))
        for stage in recipe.stages
        for key in ("max_steps", "warmup_steps")
        if share < 1 and stage.training.get(key, 0) >= 1
    ]


def _steps(recipe: Recipe) -> dict[str, Any]:
    return {stage.name: stage.training.get("max_steps") for stage in recipe.stages}


# ---- scores ------------------------------------------------------------------------------------------------


def _untrained(recipe: Recipe, baseline: str) -> Encoder:
    """Return the language model with a baseline's pooling, in the lengths and the arithmetic of the training."""
    from embrew.recipe import Recipe, build
    from embrew.recipe.build.encoders import arithmetic

    lengths = recipe.encoder.max_length
    same: list[Override] = [(f"encoder.max_length.{side}", getattr(lengths, side)) for side in ("query", "document")]
    if arithmetic(recipe, recipe.stages[-1]) == "bfloat16":
        same.append(("encoder.dtype", "bfloat16"))
    return build.encoder(Recipe.load(baseline, same))


def _score(encoder: Encoder, output: Path, name: str) -> Result:
    from embrew.adapting.baselines import score

    return score(encoder, output / "data" / "test", "test", output / "results" / name, name=name, batch_tokens=4096)


def _row(step: str, result: Result, seconds: float | None = None) -> dict[str, Any]:
    return {"step": step, "seconds": seconds, **{key: result.scores[key] for key in ("ndcg_at_10", "recall_at_10")}}


def _show(console: Console, output: Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Print the table, and write it as `table.md` and `scores.png`."""
    from embrew.analysis.plots import draw_bars, drawing

    header = ["", "nDCG@10", "Recall@10", "training"]
    table = Table(*(Column(name, justify="right" if name else "left") for name in header), title=title)
    lines = [f"{title}.", "", f"| {' | '.join(header)} |", "|---|---|---|---|"]
    for row in rows:
        seconds = "–" if row["seconds"] is None else f"{row['seconds']:.0f} s"
        cells = [row["step"], f"{row['ndcg_at_10']:.3f}", f"{row['recall_at_10']:.3f}", seconds]
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    console.print(table)
    (output / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with drawing(output / "scores.png", 8, 0.7 * len(rows) + 1.4) as figure:
        axes = figure.subplots()
        scores = {"nDCG@10": [row["ndcg_at_10"] for row in rows], "Recall@10": [row["recall_at_10"] for row in rows]}
        draw_bars(axes, [row["step"] for row in rows], scores)
        axes.set_xlabel("score on the documentation of unseen packages")


def _say_what_next(console: Console, output: Path) -> None:
    """Say where the results are, and which commands to type next."""
    model, data = output / "model", output / "data"
    places = {"Table": "table.md", "plot": "scores.png", "Sentence-Transformers folder": "export"}
    listed = "   ".join(f"{what}: {output / name}" for what, name in places.items())
    console.print(f"\n{listed}\n\n[bold]What to type next[/]", soft_wrap=True)
    for what, line in (
        ("ask your own question", command("search", model, "--index", output / "index", "…")),
        ("look inside the vectors", command("analyze", "spectrum", model, "--data", data / "texts.jsonl")),
        ("see what this folder holds", command("runs", output)),
        ("make an encoder of your own texts", "embrew adapt MODEL --pairs FILE --docs DIR"),
        ("find a recipe for a larger model", "embrew recipe list"),
    ):
        console.print(f"  {escape(line)}\n    {what}", soft_wrap=True)


if __name__ == "__main__":
    main()
