"""Which results of several models can be compared: the same task and split, data, protocol and size."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from embrew.comparison.models import Model, Scored

# Settings of a task that belong to the model, and those that change no vector.
OF_THE_MODEL = frozenset({"instruction", "context", "batch_tokens"})


class LeftOut(NamedTuple):
    """A task that is not compared, and why."""

    task: str
    reason: str


def comparable(models: Sequence[Model]) -> tuple[list[tuple[str, str]], list[LeftOut]]:
    """Return the tasks (name and split) that all models have alike, in the first one's order, and those left out."""
    keys = list(dict.fromkeys(_key(scored) for model in models for seed in model.seeds for scored in seed))
    kept, left_out = [], []
    for key in keys:
        reason = _reason(models, key)
        if reason is None:
            kept.append(key)
        else:
            left_out.append(LeftOut(f"{key[0]} {key[1]}", reason))
    return kept, left_out


def _reason(models: Sequence[Model], key: tuple[str, str]) -> str | None:
    """Return why a task cannot be compared; None if it can."""
    found = {model.name: [scored for seed in model.seeds for scored in seed if _key(scored) == key] for model in models}
    missing = [model.name for model in models if len(found[model.name]) < len(model.seeds)]
    if missing:
        there = [name for name in found if name not in missing]
        return f"only {', '.join(there)} {'has' if len(there) == 1 else 'have'} a result" if there else "not all seeds"
    (name, (first, *_)), *_ = found.items()
    for other, results in found.items():
        for scored in results:
            different = _different(first, scored)
            if different:
                return f"{other} was evaluated {different} than {name}"
    return None


def _different(one: Scored, other: Scored) -> str | None:
    """Return in what two results of a task differ that changes its score for any model; None if in nothing."""
    if one.result.kind != other.result.kind:
        return f"as {other.result.kind}, not {one.result.kind}: another kind of task"
    if one.run.get("dataset_revision") != other.run.get("dataset_revision"):
        return "on another version of the data"
    ours, theirs = _protocol(one.run), _protocol(other.run)
    keys = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if keys:
        return "by another protocol (" + ", ".join(f"{k}: {theirs.get(k)!r}, not {ours.get(k)!r}" for k in keys) + ")"
    if one.result.counts and other.result.counts and dict(one.result.counts) != dict(other.result.counts):
        return "on another number of examples"
    if one.result.scores.get("metric") != other.result.scores.get("metric"):
        return "by another metric"
    return None


def _protocol(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.get("settings", {}).items() if key not in OF_THE_MODEL}


def _key(scored: Scored) -> tuple[str, str]:
    return scored.result.task, scored.result.split
