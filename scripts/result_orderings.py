"""The papers' orderings of `docs/orderings.yaml`, with verdicts computed from results. Used by `result_report.py`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from result_cells import has_result, page_of, result
from result_scores import KEYS, Comparison, comparisons
from verdicts import (
    AGAINST,
    FOR,
    NOT_MEASURED,
    NOT_RUN,
    OPEN,
    REFUTED,
    REPRODUCED,
    SEEDS,
    UNRESOLVED,
    VERDICTS,
    combine,
)

from embrew.settings.yaml_files import parse_yaml

PLACES = {"real": "SmolLM2", "world": "small world"}
ORDERING = ("method", "claim", "paper", "setting", *PLACES)
OWN = ("compare", "why", "part", "cannot", "on", "needs")
HOURS = "gpu-hours"  # hours per row and seed, of `benchmarks/gpu_hours.py`
DECIDING = {REPRODUCED: FOR, REFUTED: AGAINST}
CODE = re.compile(r"`[^`]*`")
FIGURE = re.compile(r"(?<![\w-])\d+(?![\dA-Z])")


@dataclass(frozen=True)
class Place:
    """An ordering on one kind of language: its comparisons, and a sentence for each verdict that needs one."""

    name: str
    shown: str
    compared: tuple[Comparison, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    cannot: str = ""
    needs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def verdict(self) -> str:
        """Return the verdict, computed from the comparisons."""
        return UNRESOLVED if self.cannot else combine([one.outcome() for one in self.compared])

    def counted(self) -> str:
        """Return how many of several comparisons are for and against the claim."""
        counts = Counter(one.outcome().result for one in self.compared)
        if len(self.compared) < 2 or self.verdict() == NOT_MEASURED:
            return ""
        shown = {FOR: "for", AGAINST: "against", OPEN: "open", NOT_RUN: NOT_RUN}
        return f" ({', '.join(f'{counts[result]} {word}' for result, word in shown.items() if counts[result])})"

    def cell(self) -> str:
        """Return the verdict as a cell of a summary."""
        verdict = self.verdict()
        said = ", in part" if self.part and verdict == REPRODUCED else ""
        deciding = [one.outcome() for one in self.compared if one.outcome().result == DECIDING.get(verdict)]
        weak = [outcome.by_sign for outcome in deciding]
        if weak and (any(weak) if verdict == REPRODUCED else all(weak)):
            said += ", by sign alone"
        minutes = self.minutes()
        return f"**{verdict}**{said}{self.counted()}" + (f"; needs {minutes} GPU minutes" if minutes else "")

    def minutes(self) -> int:
        """Return the minutes in which one GPU trains three seeds of all rows; 0: it has a verdict, or no hours."""
        if self.verdict() in (REPRODUCED, REFUTED) or not has_result(HOURS):
            return 0
        runs = {(file, row): count for file, rows in self.needs.items() for row, count in rows.items()}
        for one in self.compared:
            runs |= one.missing(SEEDS)
        planned = result(HOURS)["rows"]
        total = sum(count * planned.get(file, {}).get(row, 0.0) for (file, row), count in runs.items())
        return math.ceil(60 * total)

    def reason(self) -> str:
        """Return why: the sentence written for this verdict; for a claim left open, what its comparisons lack."""
        verdict = self.verdict()
        if self.cannot:
            return self.cannot
        computed = f"Left open: {self.lacking()}." if verdict == UNRESOLVED else ""
        if verdict == NOT_MEASURED and self.compared:
            computed = "The plan has these rows, and they were not run yet."
        training = ""
        if minutes := self.minutes():
            gpu = result(HOURS)["gpu"]
            training = f"Training three seeds of what is missing: {minutes} min on one {gpu} ({page_of(HOURS)})."
        said = [
            self.why.get(verdict, ""),
            computed,
            training,
            self.part and f"Only part of the claim is compared: {self.part}",
        ]
        return " ".join(text for text in said if text)

    def lacking(self) -> str:
        """Return what the comparisons lack that are neither for nor against the claim."""
        lacking = Counter(one.outcome().why or one.outcome().result for one in self.compared)
        return ", ".join(
            f"{why} ({count} of {len(self.compared)})" if len(self.compared) > 1 else why
            for why, count in lacking.items()
            if why not in (FOR, AGAINST)
        )

    def problem(self) -> str:
        """Return what is missing in `docs/orderings.yaml` for the verdict of now; nothing if all is there."""
        verdict = self.verdict()
        if self.reason() and (verdict in self.why or verdict not in (REPRODUCED, REFUTED)):
            return ""
        known = ", ".join(self.why) or "no verdict"
        return f"{self.shown}: the results now say {verdict}; docs/orderings.yaml explains {known} (key `why`)"


@dataclass(frozen=True)
class Ordering:
    """A claim of a paper with its figures, and what was measured of it."""

    number: int
    method: str
    claim: str
    paper: str
    setting: str
    places: tuple[Place, ...]

    def details(self) -> str:
        """Return the section of an ordering."""
        lines = [f"### Ordering {self.number}", "", f"**{self.method}: {self.claim}.** Paper: {self.paper}"]
        lines[-1] += f" ({self.setting})." if self.setting else "."
        rows = [[place.shown, *one.cells()] for place in self.places for one in place.compared]
        if rows:
            lines += ["", "| on | comparison | first | second | difference | result |", "|---|---|---:|---:|---:|---|"]
            lines += [f"| {' | '.join(row)} |" for row in rows]
        lines += ["", *(f"- {place.shown}: {place.cell()}. {place.reason()}" for place in self.places)]
        return "\n".join([*lines, *self.source()])

    def source(self) -> list[str]:
        """Return the line with the result files and their dates; none if nothing was measured."""
        names = dict.fromkeys(file for place in self.places for one in place.compared for file in one.files())
        dated = [f"{page_of(name)} ({(result(name).get('date') or 'no date')[:10]})" for name in names]
        return ["", f"Source: {', '.join(dated)}."] if dated else []


def read_orderings(path: Path) -> tuple[Ordering, ...]:
    """Return the orderings of a YAML file.

    Raises:
        ValueError: an unknown or missing key, a figure in a sentence, or a comparison that no file has.
    """
    given = parse_yaml(path.read_text(encoding="utf-8"), source=path.name)
    _known(given, ("names", "untrained", "orderings"), "the file")
    shared = {key: given[key] for key in ("names", "untrained")}
    return tuple(_ordering(int(key), entry, shared) for key, entry in given["orderings"].items())


def _ordering(number: int, given: Mapping[str, Any], shared: Mapping[str, Any]) -> Ordering:
    """Return an ordering."""
    _known(given, ORDERING, f"ordering {number}")
    if missing := [key for key in ORDERING if key not in given and key != "setting"]:
        raise ValueError(f"ordering {number} has no {', '.join(missing)}")
    try:
        places = tuple(_place(name, given[name], shared) for name in PLACES)
    except ValueError as error:
        raise ValueError(f"ordering {number}: {error}") from error
    return Ordering(number, given["method"], given["claim"], given["paper"], given.get("setting", ""), places)


def _place(name: str, given: Mapping[str, Any], shared: Mapping[str, Any]) -> Place:
    """Return an ordering's comparisons on SmolLM2, or in the small world."""
    common = {key: value for key, value in given.items() if key not in OWN}
    _known(common, KEYS, name)
    why, cannot, compared = given.get("why", {}), given.get("cannot", ""), given.get("compare", [])
    _known(why, VERDICTS, f"{name}, why")
    if cannot and (compared or why):
        raise ValueError(f"{name}: `cannot` stands alone, since with comparisons the verdict is computed")
    for sentence in [*why.values(), cannot, given.get("part", "")]:
        if FIGURE.search(CODE.sub("", sentence)):
            raise ValueError(f"{name}: a figure in {sentence!r}; figures stand in tables")
    if not compared and not cannot and NOT_MEASURED not in why:
        raise ValueError(f"{name}: write `compare`, or `why` with the key {NOT_MEASURED!r}, or `cannot`")
    made = tuple(one for entry in compared for one in comparisons(entry, common, shared))
    shown, part, needs = given.get("on", PLACES[name]), given.get("part", ""), given.get("needs", {})
    return Place(name, shown, made, why, part, cannot, needs)


def _known(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    """Refuse other keys."""
    if unknown := set(given) - set(keys):
        raise ValueError(f"{where}: unknown keys {sorted(unknown)}; known are {', '.join(keys)}")
