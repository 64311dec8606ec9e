"""Settings in which models differ, from the sidecars of their results."""

from collections.abc import Mapping, Sequence
from typing import Any

from embrew.comparison.models import Model

_OF_THE_TASK = ("counts", "task", "split", "kind")


def differing_settings(models: Sequence[Model]) -> dict[str, tuple[Any, ...]]:
    """Return settings by dotted key with each model's value, only those that differ on a task that all have.

    Values are those of each model's first seed, and of the first task on which they differ.
    """
    runs = [{(s.result.task, s.result.split): s.run for s in model.seeds[0]} for model in models]
    differing: dict[str, tuple[Any, ...]] = {}
    for task in (key for key in runs[0] if all(key in run for run in runs)):
        flat = [flattened(run[task]) for run in runs]
        for key in dict.fromkeys(key for each in flat for key in each):
            values = tuple(each.get(key) for each in flat)
            if any(value != values[0] for value in values):
                differing.setdefault(key, values)
    return dict(sorted(differing.items()))


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key, without those that only name the task or its size."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if not prefix and key in _OF_THE_TASK:
            continue
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
