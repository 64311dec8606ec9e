"""Train and evaluate the rows of a sweep, or the remaining ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from embrew import opening
from embrew.analysis.uniformity import evaluation_of
from embrew.distributed import locked_by_main_process
from embrew.evaluation import Result, evaluate, read_suite
from embrew.evaluation.dev import dev_sets_of
from embrew.evaluation.suites import Suite
from embrew.extras import import_extra
from embrew.files.formats import SWEEP
from embrew.files.reading import read_json
from embrew.progress import is_chosen, within
from embrew.recipe import Recipe
from embrew.sweep.results import TrainedRow, write_results
from embrew.sweep.reuse import reuse_stages
from embrew.sweep.rows import RESERVED, Sweep
from embrew.training import stages
from embrew.training.stage_json import STAGE

logger = logging.getLogger(__name__)


def run_sweep(
    sweep: Sweep,
    folder: str | Path,
    *,
    resume: bool = False,
    verify: str = "fast",
    start: str | Path | None = None,
) -> list[TrainedRow]:
    """Train every row below `folder`, evaluate it after its last stage, and write all results to one table.

    Writes `folder/ROW/` (a run, or one per seed in `seed-N/`) with `results/`, and after each row `sweep.md`,
    `sweep.json` and, if one number varies, `sweep.png`. A stage that another row has trained with the same settings is
    reused.

    Args:
        sweep: the rows.
        folder: output folder; must not hold a sweep, unless `resume`.
        resume: skip stages that are finished with the same settings, and resume the others.
        verify: how a saved stage is verified.
        start: folder of a trained encoder that every row starts from; no stage is reused then.

    Raises:
        FileExistsError: `folder` holds a sweep and `resume` is off, or another process uses it.
        ImportError: one number varies, and matplotlib is not installed.
        FileNotFoundError, ValueError: as `read_suite`, `dev_sets` and `train`; missing data is found before training.
    """
    process, root = PartialState(cpu=not torch.accelerator.is_available()), Path(folder)
    finished: list[TrainedRow] = []
    with locked_by_main_process(root, "sweeping in"):
        if (root / SWEEP.file).exists():
            if not resume:
                raise FileExistsError(f"{root} holds a sweep; give --resume to continue it, or choose another folder")
            read_json(root / SWEEP.file, kind=SWEEP)
        if sweep.axis is not None:
            import_extra("matplotlib", "plots", "the picture of a sweep over one number")
        suite = None if sweep.suite is None else read_suite(sweep.suite)
        for row in sweep.rows:  # missing data is found before training
            for recipe in row.recipes.values():
                evaluation_of(recipe)
        process.wait_for_everyone()  # all processes have checked before the first one writes
        for number, row in enumerate(sweep.rows, start=1):
            results, position = [], f"row {number} of {len(sweep.rows)}"
            for seed, recipe in row.recipes.items():
                run = row.folder(root, seed)
                logger.info("%s: %s%s", position, row.name, "" if seed is None else f", seed {seed}")
                if process.is_main_process and start is None:
                    reuse_stages(recipe, run, finished_runs(root))
                process.wait_for_everyone()
                dev_sets = evaluation_of(recipe) if suite is not None or _needs_dev_sets(recipe) else None
                with within(position):
                    stages.train(recipe, run, resume=run.exists(), evaluate=dev_sets, verify=verify, start=start)
                    if process.is_main_process:
                        results.append(_evaluate(recipe, run, suite))
                process.wait_for_everyone()
            if process.is_main_process:
                finished.append(TrainedRow(row, tuple(results)))
                write_results(root, sweep, finished)
    return finished


def finished_runs(root: Path) -> list[Path]:
    """Return the folders of runs below a sweep that have finished a stage, sorted."""
    return sorted({path.parents[1] for pattern in ("*/*", "*/*/*") for path in root.glob(f"{pattern}/{STAGE}")})


def _needs_dev_sets(recipe: Recipe) -> bool:
    """Return whether training needs the dev sets: for evaluation within stages, or for reserved rows."""
    evaluation = recipe.evaluation
    return evaluation is not None and (evaluation.reserves or (evaluation.every or evaluation.at) is not None)


def _evaluate(recipe: Recipe, run: Path, suite: Suite | None) -> list[Result]:
    """Evaluate the encoder of the last stage; results are written to the run's folder."""
    encoder: Any = opening.open_model(str(run), as_trained=True)
    sets = None if suite is not None else dev_sets_of(recipe)
    tasks: Any = suite if sets is None else [*sets.dev, *sets.guard]
    evaluation = recipe.evaluation
    tokens = None if evaluation is None else evaluation.batch_tokens
    return evaluate(encoder, tasks, output_dir=run / RESERVED, batch_tokens=tokens, show_progress_bar=is_chosen())
