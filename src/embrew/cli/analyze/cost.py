"""Kinds of `embrew analyze` that show scores against time: of results, and of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from embrew.cli.analyze.kinds import Data, Outcome, measure_all, tasks_of
from embrew.cli.arguments import Count, Suite, read_numbers

if TYPE_CHECKING:
    from embrew.analysis.demonstrations import DemonstrationCost
    from embrew.text_encoder import TextEncoder


def cost(models: Sequence[str]) -> Outcome:
    """Show the score of each result folder against the time of its evaluation, on the tasks that all of them have.

    Args:
        models (RESULTS): Folders of results.
    """
    from embrew.analysis.plots import plot_costs
    from embrew.evaluation.results import mean_score
    from embrew.report.comparison import read_folder

    folders = {name: {(result.task, result.split): result for result in read_folder(name)} for name in models}
    shared = sorted(set.intersection(*(set(tasks) for tasks in folders.values())))
    if not shared:
        raise ValueError(f"no task is in all folders: {', '.join(models)}; evaluate them on one suite")
    outcome = Outcome(None, {"tasks": [" ".join(task) for task in shared]})
    for name, scored in folders.items():
        results = [scored[task] for task in shared]
        entry = {
            "results": name,
            "score": mean_score(results),
            "seconds": sum(result.seconds for result in results),
            "steps": (results[0].run.get("model") or {}).get("steps", 0),
        }
        outcome.models.append(entry)
        outcome.table.append(entry)
    outcome.rows = outcome.models
    outcome.plot = partial(plot_costs, outcome.models)
    outcome.lines = [
        f"{len(shared)} tasks that all have: {', '.join(name for name, _ in shared)}",
        "seconds are those of evaluate: compare folders that one machine wrote; 0 steps: not trained by embrew",
    ]
    return outcome


def demonstrations(
    models: Sequence[str],
    *,
    data: Data = (),
    split: str | None = None,
    batch_tokens: Count = None,
    suite: Suite = None,
    demos: str,
    instruction: str | None = None,
    counts: str | None = None,
) -> Outcome:
    """Show scores, time and tokens per text by number of demonstrations, and training time (EPIC, Fig. 3).

    Args:
        data (PATH): Data folder or file. Repeatable.
        split: Split of a data folder; by default test, else dev.
        batch_tokens: Maximum number of tokens per batch, padding included.
        suite: A shipped suite or a YAML file; --data is the folder of its data sets.
        demos (FILE): File with columns query and response, best first.
        instruction: Instruction before queries; by default that of --demos.
        counts (N,…): Numbers of demonstrations, e.g. 0..8 or 0,5; by default 0 and all.
    """
    from embrew.analysis.demonstrations import by_demonstrations, training_seconds
    from embrew.analysis.plots import plot_demonstrations
    from embrew.cli.context import read_context
    from embrew.encoder import Encoder
    from embrew.model.contexts import Context

    instruction, pairs = read_context(instruction, demos)
    tasks = tasks_of(data, suite, split, choosing=False)
    numbers = read_numbers(counts) if counts else [0, len(pairs)]

    def measure(encoder: TextEncoder) -> list[DemonstrationCost]:
        if not isinstance(encoder, Encoder):
            raise ValueError("analyze demonstrations needs an encoder of embrew that reads them; give its folder")
        return by_demonstrations(encoder, Context(instruction, pairs), numbers, tasks, batch_tokens=batch_tokens)

    drawn: list[tuple[str, float | None, list[DemonstrationCost]]] = []
    outcome = Outcome(partial(plot_demonstrations, drawn), {"tasks": [task.name for task in tasks]})
    for entry, shots in measure_all(models, measure):
        seconds = training_seconds(entry["model"])
        outcome.models.append({**entry, "training_seconds": seconds, "shots": [vars(shot) for shot in shots]})
        outcome.rows += [{"model": entry["model"], "training_seconds": seconds, **vars(shot)} for shot in shots]
        drawn.append((entry["model"], seconds, shots))
    outcome.table = outcome.rows
    outcome.lines = [f"scored on {', '.join(f'{task.name} {task.split_label}' for task in tasks)}"]
    return outcome
