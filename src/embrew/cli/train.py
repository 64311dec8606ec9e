"""`embrew train`: train a recipe stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embrew.cli import completion
from embrew.cli.arguments import Output, Overrides, RecipeName, Verify
from embrew.cli.console import command_line, print_line, rank
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
    names = " → ".join(stage.name for stage in loaded.stages) or "no stages; there is nothing to train"
    print_line((recipe, "bold"), f" on {loaded.encoder.model}: {names}")
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
    print_line("trained model: ", (str(output / loaded.stages[-1].name), "bold"))


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
    print_line((recipe, "bold"), f", {rows.source}: {len(rows.rows)} rows")
    with stopping(lambda: f"finished rows are in {output}; the same command with --resume resumes"):
        run_sweep(rows, output, resume=resume, verify=verify, start=start)
    page = report_of_folder(output, command=command_line()) if rank() == 0 else None
    print_line((output / "sweep.md").read_text(encoding="utf-8"))
    if page is not None:
        print_line("page: ", (str(page), "bold"))


def _finished(recipe: Recipe, output: Path) -> str:
    finished = [output / stage.name for stage in recipe.stages if (output / stage.name / "embrew.json").is_file()]
    return f"finished: {', '.join(map(str, finished))}" if finished else f"no stage is finished in {output}"
