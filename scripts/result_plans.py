"""Rows that the plans of `benchmarks/plans` will measure. Used by `result_tables.py` and `result_orderings.py`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from embrew.config.yaml_files import parse_yaml

ROOT = Path(__file__).parents[1]
PLANS = ROOT / "benchmarks" / "plans"
RECIPES = ROOT / "src" / "embrew" / "recipes"


def plan_of(name: str) -> Path:
    """Return the path of the plan of a result file; `PLAN-collapse` has the rows of PLAN."""
    return PLANS / f"{name.removesuffix('-collapse')}.yaml"


@cache
def planned(name: str) -> frozenset[str]:
    """Return the rows that `benchmarks/plans/NAME.yaml` gives to its result file; none if there is no such plan."""
    path = plan_of(name)
    return frozenset(row for entry in rows_of(path) for row in labels(entry)) if path.exists() else frozenset()


@cache
def untrained(name: str) -> frozenset[str]:
    """Return the rows of `benchmarks/plans/NAME.yaml` that are scored as they are: recipes without a stage."""
    path = plan_of(name)
    entries = rows_of(path) if path.exists() else []
    kept = [entry for entry in entries if entry.get("stages", stages_of(entry.get("recipe"))) == []]
    return frozenset(row for entry in kept for row in labels(entry))


def to_come(error: Exception, name: str, path: list[Any]) -> bool:
    """Return whether a path is missing in `benchmarks/results/NAME.json` since its row is planned and was not run."""
    missing = path if isinstance(error, FileNotFoundError) else error.args[:1]
    return any(isinstance(part, str) and part in planned(name) for part in missing)


def labels(entry: dict[str, Any]) -> Iterator[str]:
    """Yield the names under which a row's scores are kept: by stage and by what else is varied in scoring."""
    known = stages_of(entry.get("recipe"))
    scored = entry.get("judge") or entry.get("stages", known) or (["untrained"] if known else [])
    staged = [f"{entry['row']}: {stage}" for stage in scored]
    if known is None:  # a recipe that is not here may have one stage or several
        staged.append(entry["row"])
    elif len(known) < 2:
        staged = [entry["row"]]
    shots = [""]
    if "shots" in entry:
        kinds = entry.get("demonstrations", ["right"])
        several = [f", {count} shots" for count in entry["shots"] if count]
        shots = [", 0 shots"] * (0 in entry["shots"])
        shots += [f"{count}" + ("" if kind == "right" else f", {kind}") for count, kind in product(several, kinds)]
    varied = product(
        staged,
        ["" if name == "all" else f", {name}" for name in entry.get("tokens", ["all"])],
        shots,
        [f", {name}" for name in entry["asked"]] if "asked" in entry else [""],
    )
    yield from ("".join(parts) for parts in varied)


def stages_of(recipe: str | None) -> list[str] | None:
    """Return the names of a recipe's stages; None if it is not a file of this repository."""
    for path in (RECIPES / f"{recipe}.yaml", ROOT / str(recipe)):
        if recipe is not None and path.is_file():
            return [stage["name"] for stage in rows_of(path, "stages")]
    return None


def rows_of(path: Path, key: str = "rows") -> list[dict[str, Any]]:
    """Return a list of a YAML file."""
    found: list[dict[str, Any]] = parse_yaml(path.read_text(encoding="utf-8"), source=path.name).get(key, [])
    return found
