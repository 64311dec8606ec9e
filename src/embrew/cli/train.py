"""`embrew train`: train a recipe stage by stage."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from embrew.cli import completion
from embrew.cli.arguments import Output, Overrides, Quiet, RecipeName, Verify
from embrew.cli.console import out, rank
from embrew.cli.signals import stopping
from embrew.files.writing import check_unclaimed

if TYPE_CHECKING:
    from embrew.recipe import Recipe
    from embrew.training.stage_evaluation import EvaluateSets


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    output: Output,
    resume: bool = False,
    start: Annotated[Path | None, typer.Option("--from")] = None,
    verify: Verify = "fast",
    sweep: Annotated[str | None, typer.Option(autocompletion=completion.sweeps)] = None,
    quiet: Quiet = False,
) -> None:
    """Train a recipe; each stage saves a complete model in DIR.

    Many GPUs: accelerate launch -m embrew train RECIPE --output DIR

    Args:
        recipe: Name of a shipped recipe (embrew recipe list) or a YAML file.
        output (DIR): Folder in which the stages are saved, one folder per stage.
        resume: Resume the run in DIR: skip finished stages, continue the stage that was stopped.
        start (DIR): Start from the trained encoder in this folder, not from the recipe's language model.
        sweep (FILE): Train and evaluate several settings of the recipe: name of a shipped sweep or a YAML file.
    """
    if sweep is not None:
        _sweep(recipe, sweep, overrides or (), output, resume=resume, verify=verify, start=start)
        return
    from embrew.recipe import build

    loaded = build.load_recipe(recipe, overrides or ())
    if rank() == 0:  # before anything is loaded; training locks the folder itself
        check_unclaimed(output, "training into")
    console = out()
    _announce(recipe, loaded)
    evaluate: EvaluateSets | None = None
    if loaded.evaluation is not None:  # missing data is found before anything is loaded
        from embrew.analysis.uniformity import evaluation_of

        evaluate = evaluation_of(loaded)
    from embrew.planning.plan import announce
    from embrew.training import stages

    command = ["train", recipe, *(overrides or ()), *(["--from", str(start)] if start else [])]
    with stopping(lambda: f"{_finished(loaded, output)}; the same command with --resume resumes"):
        stages.train(
            loaded,
            output,
            resume=resume,
            evaluate=evaluate,
            verify=verify,
            start=start,
            command=command,
            announce=partial(announce, loaded),
        )
    console.print(f"trained model: [bold]{escape(str(output / loaded.stages[-1].name))}[/]", soft_wrap=True)


def _sweep(
    recipe: str,
    sweep: str,
    overrides: Sequence[str],
    output: Path,
    *,
    resume: bool,
    verify: str,
    start: Path | None,
) -> None:
    from embrew.report.making import report_of_folder
    from embrew.sweep import read_sweep, run_sweep

    rows = read_sweep(sweep, recipe, overrides)
    console = out()
    console.print(f"[bold]{escape(recipe)}[/], {escape(rows.source)}: {len(rows.rows)} rows", soft_wrap=True)
    with stopping(lambda: f"finished rows are in {output}; the same command with --resume resumes"):
        run_sweep(rows, output, resume=resume, verify=verify, start=start)
    page = report_of_folder(output, command=shlex.join(["embrew", *sys.argv[1:]])) if rank() == 0 else None
    console.print((output / "sweep.md").read_text(encoding="utf-8"), markup=False, soft_wrap=True)
    if page is not None:
        console.print(f"page: [bold]{escape(str(page))}[/]", soft_wrap=True)


def _announce(name: str, recipe: Recipe) -> None:
    console = out()
    stages = " → ".join(stage.name for stage in recipe.stages) or "no stages; there is nothing to train"
    console.print(f"[bold]{escape(name)}[/] on {escape(recipe.encoder.model)}: {escape(stages)}")


def _finished(recipe: Recipe, output: Path) -> str:
    finished = [output / stage.name for stage in recipe.stages if (output / stage.name / "embrew.json").is_file()]
    return f"finished: {', '.join(map(str, finished))}" if finished else f"no stage is finished in {output}"
