"""Comparisons of `docs/orderings.yaml`: their scores in `benchmarks/results`, and how they are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from result_cells import Column, find, has_result, path_of, result
from verdicts import ABOVE, AGAINST, FOR, NOT_RUN, OPEN, STEADIER, Outcome, Scores, compare, measured

MARGIN = 1.0  # points, of "≥" and "≈"
SHOWN = {FOR: "for", AGAINST: "**against**", OPEN: "open", NOT_RUN: NOT_RUN}


@dataclass(frozen=True)
class Comparison:
    """Two rows of result files, or a measured ratio; the fields are keys in `docs/orderings.yaml`."""

    better: Any = None
    than: Any = None
    ratio: str | None = None
    file: str = ""
    than_file: str | None = None
    at: Any = "rows"
    task: Any = None
    than_task: Any = None
    what: str | None = None
    label: str | None = None
    relation: str = ABOVE
    lower: bool = False
    scale: float = 100
    format: str = ".1f"
    names: Mapping[str, str] = field(default_factory=dict)
    untrained: Collection[str] = ()

    def scores(self) -> tuple[Scores, Scores]:
        """Return the scores of both rows."""
        ours = scores_of(self.file, self.at, self.better, self.task, self.scale, self.untrained)
        other = self.than_file or self.file
        if other != self.file:
            both = [result(name) for name in (self.file, other)]
            for key in ("suite", "dtype"):
                first, second = (found.get(key) for found in both)  # earlier files do not have the dtype
                if first != second and (key == "suite" or None not in (first, second)):
                    raise ValueError(f"{self.file} and {other} were scored with another {key}: {first}, {second}")
        return ours, scores_of(other, self.at, self.than, self.than_task or self.task, self.scale, self.untrained)

    def outcome(self) -> Outcome:
        """Return what the scores show."""
        if self.absent():
            return Outcome(NOT_RUN)
        if self.ratio is None:
            return compare(*self.scores(), self.relation, margin=MARGIN, lower=self.lower)
        found = find(result(self.file), path_of(self.at))
        return measured(found["ratio"], found["low"], found["high"], against=1.0)

    def absent(self) -> bool:
        """Return whether a result file, or a row of one, is not there yet."""
        sides = [(self.file, self.better), (self.than_file or self.file, self.than)]
        return any(
            not has_result(name) or (isinstance(row, str) and row not in find(result(name), path_of(self.at)))
            for name, row in sides
        )

    def missing(self, seeds: int) -> dict[tuple[str, str], int]:
        """Return how many runs each row lacks for that many seeds, by file and row; none of untrained rows."""
        found = {}
        for file, row in ((self.file, self.better), (self.than_file or self.file, self.than)):
            table = find(result(file), path_of(self.at)) if has_result(file) else {}
            if isinstance(row, str) and row not in self.untrained:
                there = table.get(row, [])
                found[file, row] = max(0, seeds - (len(there) if isinstance(there, list) else 1))
        return found

    def cells(self) -> list[str]:
        """Return the comparison, both values, their difference and the result as cells of a table."""
        outcome = self.outcome()
        bare = self.ratio is not None or outcome.result == NOT_RUN
        values = ["", ""] if bare else [self.value(scores) for scores in self.scores()]
        shown = SHOWN[outcome.result] + (f": {outcome.why}" if outcome.why else "")
        shown += ", by sign alone" if outcome.by_sign else ""
        return [self.said(), *values, self.difference(outcome), shown]

    def said(self) -> str:
        """Return the comparison in words."""
        if self.ratio is not None:
            return f"{self.ratio}: above 1"
        if self.label is not None:
            return self.label
        what = self.what or self.named(self.task)
        ours, theirs = self.named(self.better), self.named(self.than)
        if self.than_task is not None:
            return f"{ours}: {what} > {self.named(self.than_task)}"
        sign = "<" if self.lower and self.relation == ABOVE else self.relation
        return f"{ours} {sign} {theirs}, {what}"

    def named(self, key: Any) -> str:
        """Return the name under which a row or task is shown."""
        return self.names.get(str(key), str(key))

    def value(self, scores: Scores) -> str:
        """Return a row's mean, spread and number of seeds."""
        text = Column(format=self.format).text(list(scores.values))
        count = len(scores.values)
        return f"{text} (not trained)" if scores.fixed else f"{text} ({count} seed{'s' if count > 1 else ''})"

    def difference(self, outcome: Outcome) -> str:
        """Return a difference (or ratio) with its interval and the seeds that agree with the paper."""
        if outcome.difference is None:
            return "–"
        plain = self.ratio is not None or self.relation == STEADIER
        shape = ".2f" if plain else f"+{self.format}"
        text = ("× " if plain else "") + format(outcome.difference, shape)
        if outcome.ends is not None:
            text += f" ({format(outcome.ends[0], shape)} to {format(outcome.ends[1], shape)})"
        if outcome.seeds:
            text += f", {outcome.agreeing} of {outcome.seeds} seeds above 0"
        return text

    def files(self) -> list[str]:
        """Return the result files of the comparison that are there."""
        return [name for name in dict.fromkeys([self.file, self.than_file or self.file]) if has_result(name)]


KEYS = tuple(one.name for one in fields(Comparison) if one.name not in ("names", "untrained"))


def comparisons(given: Mapping[str, Any], common: Mapping[str, Any], shared: Mapping[str, Any]) -> Iterator[Comparison]:
    """Yield the comparisons of an entry: of a chain, with each of several rows, on each of several tasks.

    Raises:
        ValueError: an unknown key, or a relation between no two rows.
    """
    own = {key: value for key, value in given.items() if key not in ("chain", "tasks")}
    if unknown := set(own) - set(KEYS):
        raise ValueError(f"unknown keys {sorted(unknown)}; known are chain, tasks, {', '.join(KEYS)}")
    base = Comparison(**{**common, **own, **shared})
    chain = given.get("chain", [])
    thans = base.than if isinstance(base.than, list) else [base.than]
    rows = list(pairwise(chain)) or [(base.better, than) for than in thans]
    if not rows or (base.ratio is None and any(None in pair for pair in rows)):
        raise ValueError(f"{dict(given)}: name `better` and `than`, a `chain` of two rows or more, or a `ratio`")
    for better, than in rows:
        for task in given.get("tasks", [base.task]):
            yield replace(base, better=better, than=than, task=task)


def scores_of(file: str, at: Any, row: Any, task: Any, scale: float, untrained: Collection[str]) -> Scores:
    """Return the scores of a row by seed.

    Raises:
        ValueError: the result file has no such row, or the row has no such task.
    """
    label = row if isinstance(row, str) else None
    content = result(file)
    table = find(content, path_of(at))
    if label is not None and label not in table:
        raise ValueError(f"{file} has no row {label!r}; it has {', '.join(table)}")
    try:
        value = find(table, [row, *path_of(task)])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file}, {row}: nothing at {task!r} ({error})") from error
    values = value if isinstance(value, list) else [value]
    own = table[label] if label is not None else None
    if isinstance(own, list) and all("seed" in one for one in own):
        seeds = [one["seed"] for one in own]
    else:
        seeds = content.get("seeds", {}).get(label, [])
    seeds = seeds if len(seeds) == len(values) else [None] * len(values)
    known = [(scale * number, seed) for number, seed in zip(values, seeds, strict=True) if number is not None]
    named = [seed for _, seed in known if seed is not None]
    fixed = label in untrained and len(known) == 1
    return Scores([number for number, _ in known], named if len(named) == len(known) else [], fixed)
