"""`embrew analyze demonstrations`: scores and time by the number of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from embrew.cli.analyze.kinds import Data, Outcome, measure_all, tasks_of
from embrew.cli.arguments import Count, Suite, read_numbers

if TYPE_CHECKING:
    from embrew.analysis.demonstrations import DemonstrationCost
    from embrew.text_encoder import TextEncoder


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
