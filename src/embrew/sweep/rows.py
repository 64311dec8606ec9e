"""The rows of a sweep: settings of a recipe, all checked before the first is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from embrew.recipe import Recipe, build
from embrew.recipe.overrides import parse_override, value_at
from embrew.settings.validation import Config, KeyPath, explain
from embrew.settings.yaml_files import line_of, list_shipped, parse_yaml, read_shipped

FOLDER = "sweeps"
RESERVED = "results"
Seed = Annotated[int, Field(ge=0)]


class RowSettings(Config):
    """Overrides, stages and seeds, of a row or of all rows."""

    set: list[str] = Field(default_factory=list)
    stages: Annotated[list[str], Field(min_length=1)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: list[int] | None) -> list[int] | None:
        if seeds and len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds={seeds}; name each seed once")
        return seeds


class RowConfig(RowSettings):
    """A row in a sweep's file."""

    name: str
    x: float | int | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]*", name) or name.endswith(".") or name.startswith("sweep."):
            raise ValueError(
                f"{name!r} names a folder: letters, digits, '-', '_', '=', '+' or '.' (not at its end), the first a "
                "letter or digit, and not sweep.…, which names the results"
            )
        return name


class SweepConfig(RowSettings):
    """A sweep's file; a plain list is its `rows`.

    Attributes:
        rows: the rows to train.
        set: overrides for all rows, applied before their own.
        stages: stages of the recipe to train, unless a row sets its own; default: all.
        seeds: seeds to train with, unless a row sets its own; default: the recipe's seed.
        suite: evaluation of all rows after their last stage; default: the recipe's `evaluation.dev`.
        x: name of the rows' `x`, for the picture.
    """

    rows: Annotated[list[RowConfig], Field(min_length=1)]
    suite: str | None = None
    x: str | None = None


@dataclass(frozen=True)
class SweepRow:
    """A checked row: one recipe per seed; the key is None for the recipe's own seed."""

    name: str
    recipes: Mapping[int | None, Recipe]
    overrides: tuple[str, ...]
    x: float | None

    @property
    def recipe(self) -> Recipe:
        """The recipe with the first seed."""
        return next(iter(self.recipes.values()))

    @property
    def stages(self) -> list[str]:
        """Names of the stages."""
        return [stage.name for stage in self.recipe.stages]

    def folder(self, root: Path, seed: int | None) -> Path:
        """Return the folder of the row's run with one of its seeds."""
        return root / self.name if seed is None else root / self.name / f"seed-{seed}"


@dataclass(frozen=True)
class Sweep:
    """Checked rows, the suite that evaluates them (None: the recipe's dev sets), and the setting that varies."""

    source: str
    rows: tuple[SweepRow, ...]
    suite: str | None
    axis: str | None


def list_sweeps() -> list[str]:
    """Return the names of the shipped sweeps."""
    return list_shipped(FOLDER)


def read_sweep(name_or_path: str | Path, recipe: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a shipped sweep by name, or a YAML file, for a recipe.

    Args:
        name_or_path: the sweep.
        recipe: the recipe's name or file.
        overrides: for all rows, applied before those of the sweep and its rows.

    Raises:
        FileNotFoundError: no such sweep or recipe.
        ValueError: not a sweep; a row that cannot be trained, with its line; two equal rows; no data to evaluate the
            rows on.
    """
    text, source = read_shipped(FOLDER, name_or_path, what="sweep")
    values = parse_yaml(text, source=source)
    is_list = isinstance(values, list)
    if not is_list and not isinstance(values, dict):
        raise ValueError(f"{source}: a sweep is a list of rows {{name, set: [key.path=value]}}, or has it as `rows`")

    def location(path: KeyPath) -> str:
        line = line_of(text, path[1:] if is_list else path)
        return f"{source}:{line}: " if line else f"{source}: "

    values = {"rows": values} if is_list else values
    try:
        config = SweepConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, SweepConfig, values, location=location)) from None
    rows: list[SweepRow] = []
    for number, entry in enumerate(config.rows):
        here = f"{location(('rows', number))}row {entry.name}"
        if entry.name.lower() in [row.name.lower() for row in rows]:
            raise ValueError(f"{here}: two rows have this name; each names its own folder")
        try:
            row = _checked(entry, config, recipe, overrides)
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"{here}: {error}") from None
        same = next((other.name for other in rows if other.recipe == row.recipe), None)
        if same is not None:
            raise ValueError(f"{here} has the same settings as row {same}; leave one out, or change a setting")
        if config.suite is None and row.recipe.evaluation is None:
            raise ValueError(
                f"{here} has no evaluation: the recipe has no evaluation, and the sweep no suite; give one of them, "
                "for example evaluation.dev=[my-beir-folder]"
            )
        first = rows[0] if rows else row
        if config.suite is None and _sets(row) != _sets(first):
            raise ValueError(
                f"{here} has other evaluation.dev or evaluation.guard than row {first.name}, so that their scores are "
                "of different sets; give all rows the same, or the sweep a suite"
            )
        rows.append(row)
    axis, numbers = _axis(rows, config.x)
    rows_with_x = tuple(replace(row, x=x) for row, x in zip(rows, numbers, strict=True))
    return Sweep(source, rows_with_x, config.suite, axis)


def _sets(row: SweepRow) -> tuple[object, object]:
    """Return the dev and guard sets of a row."""
    evaluation = row.recipe.evaluation
    return (None, None) if evaluation is None else (evaluation.dev, evaluation.guard)


def _checked(entry: RowConfig, config: SweepConfig, recipe: str | Path, overrides: Sequence[str]) -> SweepRow:
    """Return a row with its recipes, loaded and checked."""
    settings = (*config.set, *entry.set)
    stage_names = entry.stages or config.stages
    recipes: dict[int | None, Recipe] = {}
    for seed in entry.seeds or config.seeds or (None,):
        loaded = build.load_recipe(recipe, [*overrides, *settings, *([] if seed is None else [("seed", seed)])])
        names = [stage.name for stage in loaded.stages]
        unknown = [name for name in stage_names or () if name not in names]
        if unknown:
            raise ValueError(f"stages names {unknown[0]!r}; the recipe has {', '.join(names) or 'none'}")
        if stage_names is not None:
            values = loaded.resolved()
            values["stages"] = [stage for stage in values["stages"] if stage["name"] in stage_names]
            loaded = Recipe.from_values(values, source=f"stages={stage_names}")
        if not loaded.stages:
            raise ValueError("the recipe has no stages, so there is nothing to train")
        if RESERVED in [stage.name for stage in loaded.stages]:
            raise ValueError(f"a stage is called {RESERVED!r}, the folder of the row's scores; rename it")
        build.check_recipe(loaded, here=True)
        recipes[seed] = loaded
    return SweepRow(entry.name, recipes, settings, entry.x)


def _axis(rows: Sequence[SweepRow], name: str | None) -> tuple[str | None, list[float | None]]:
    """Return the name of the horizontal axis and each row's value: its `x`, or the one setting that differs."""
    numbers = [row.x for row in rows]
    if any(x is not None for x in numbers):
        if None in numbers:
            missing = next(row.name for row in rows if row.x is None)
            present = len(rows) - numbers.count(None)
            raise ValueError(
                f"{present} of {len(rows)} rows have x, row {missing} has none; give x for all rows, or for none"
            )
        return name or "x", numbers
    resolved = [row.recipe.resolved() for row in rows]
    keys = dict.fromkeys(".".join(parse_override(text)[0]) for row in rows for text in row.overrides)
    by_key = {key: [_value(recipe, key) for recipe in resolved] for key in keys}
    varying = [key for key, values in by_key.items() if any(value != values[0] for value in values)]
    values = by_key[varying[0]] if len(varying) == 1 else []
    if not values or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None, numbers
    return name or varying[0], [float(value) for value in values]


def _value(recipe: dict[str, Any], key: str) -> Any:
    """Return the value of a key of a resolved recipe; None if the row has no such stage."""
    try:
        return value_at(recipe, key.split("."), key)
    except ValueError:
        return None
