"""The models that a report is asked for, from the folders that a user names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from embrew.comparison.models import named, read_folder
from embrew.files.formats import ENCODER, RUN, SWEEP
from embrew.files.reading import read_json
from embrew.files.safe_names import path_inside
from embrew.inspection import Found, inspect
from embrew.recipe import Recipe
from embrew.report.source import RECIPE, Given, Source, is_recipe

logger = logging.getLogger(__name__)
RESULTS = "results"  # folder of results in a row of a sweep, and in a domain run
ACCEPTED = (
    "results, an encoder, a training run or one of its stages, a sweep, a domain run, an export, a "
    "Sentence-Transformers folder, or a recipe without stages"
)


def read_inputs(paths: Sequence[str], folders: Mapping[str, str] | None = None) -> list[Given]:
    """Return the models of paths, each `PATH` or `NAME=PATH`; paths of one name are seeds of a model.

    A run is one model per stage, after the untrained encoder if that can be built; a sweep one per row; a domain run
    one per step, the best untrained one first. Their names begin with that of the folder.

    Args:
        paths: Folders, recipes, Hub ids.
        folders: Encoders of results, by the name of the model.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a folder that cannot be compared, a run that is not finished, a recipe that must be trained; a name
            of `folders` that no model with one result folder has.
    """
    seeds: dict[str, list[Source]] = {}
    for name, entries in named(paths).items():
        for entry in entries:
            for model, source in _sources(name, entry):
                seeds.setdefault(model, []).append(source)
    for name, folder in (folders or {}).items():
        if name not in seeds or any(source.results is None or source.model for source in seeds[name]):
            known = [one for one, sources in seeds.items() if all(source.model is None for source in sources)]
            raise ValueError(
                f"--model {name}={folder}: no result folder has this name; choose from {', '.join(known) or 'none'}"
            )
        ((_, encoder),) = _one_encoder(name, folder)
        first, *others = seeds[name]
        seeds[name] = [replace(encoder, results=first.results), *others]
    models = [Given(name, tuple(sources)) for name, sources in seeds.items()]
    if len(paths) == 1 and _is_domain(entry):
        models[-1] = replace(models[-1], candidate=True)
    return models


def _one_encoder(name: str, folder: str) -> list[tuple[str, Source]]:
    found = list(_sources(name, folder))
    if len(found) != 1 or found[0][1].model is None:
        raise ValueError(f"--model {name}={folder}: give the folder of one encoder, such as a stage of a run")
    return found


def _sources(name: str, entry: str) -> Iterator[tuple[str, Source]]:
    """Yield names and sources of the models that a path names."""
    path = Path(entry).expanduser()
    if path.is_dir():
        yield from _of_folder(name, path)
    elif is_recipe(entry):
        recipe = Recipe.load(entry)
        if recipe.stages:
            raise ValueError(
                f"{entry} is a recipe with stages ({', '.join(stage.name for stage in recipe.stages)}); train it "
                f"(embrew train {entry} --output DIR) and give DIR"
            )
        yield name, Source(model=entry)
    elif path.exists() or entry.startswith((".", "/", "~")) or entry.count("/") > 1:
        raise FileNotFoundError(f"no folder {entry}; give {ACCEPTED}")
    else:
        yield name, Source(model=entry)  # shipped with embrew, or on the Hub


def _of_folder(name: str, path: Path) -> Iterator[tuple[str, Source]]:
    found = inspect(path)
    if found.state in ("damaged", "unreadable", "running"):
        raise ValueError(f"{path} cannot be compared: {_said(found)}")
    match found.kind:
        case "results":
            yield name, Source(results=path)
        case "training run":
            yield from _of_run(name, path, found)
        case "sweep":
            yield from _of_sweep(name, path)
        case "domain run":
            yield from _of_domain(name, path, found)
        case "encoder":
            is_stage = (path.parent / RUN.file).is_file()
            of_run = Source(run=path.parent, stage=path.name) if is_stage else Source()
            yield name, replace(of_run, model=str(path))
        case "export":
            yield name, Source(model=str(path))
        case _ if any(os.path.lexists(path / file) for file in ("modules.json", "config.json")):
            yield name, Source(model=str(path))
        case "folder" | "folders" if found.holds:
            held = ", ".join(str(each.path) for each in found.holds)
            raise ValueError(f"{path} holds several folders; give those that are to be compared: {held}")
        case _:
            raise ValueError(f"{path} cannot be compared: {_said(found)}; give {ACCEPTED}")


def _of_run(name: str, path: Path, found: Found) -> Iterator[tuple[str, Source]]:
    finished = [stage.name for stage in found.stages if stage.state == "finished"]
    if found.state != "finished":
        stages = f", or give its finished stages: {' '.join(str(path / stage) for stage in finished)}"
        raise ValueError(
            f"the run {path} is not finished: {found.summary}; resume it: {found.commands['resume']}"
            f"{stages if finished else ''}"
        )
    first = path / finished[0]
    if _base_is_known(path, first):
        yield f"{name}/untrained", Source(model=str(first), untrained=True)
    for stage in finished:
        yield f"{name}/{stage}", Source(model=str(path / stage), run=path, stage=stage)


def _base_is_known(run: Path, stage: Path) -> bool:
    """Return whether the encoder before training can be built: the run began with a language model that has a name."""
    start = read_json(run / RUN.file, kind=RUN).get("command", [])
    base = read_json(stage / ENCODER.file, keys=("base",), kind=ENCODER)["base"]
    return "--from" not in start and base["kind"] != "folder" and (stage / RECIPE).is_file()


def _of_sweep(name: str, path: Path) -> Iterator[tuple[str, Source]]:
    values = read_json(path / SWEEP.file, keys=("rows",), kind=SWEEP)
    rows = [row["name"] for row in values["rows"]]
    left_out = sorted(
        each.name for each in path.iterdir() if each.name not in rows and any(each.glob(f"**/{RUN.file}"))
    )
    if left_out:
        logger.warning("%s: %s not finished, left out", path, ", ".join(left_out))
    for row in values["rows"]:
        folder = path_inside(path, row["name"], source=path / SWEEP.file, key="name")
        for seed in row.get("seeds") or [None]:
            run = folder if seed is None else folder / f"seed-{seed}"
            stage = row["stages"][-1]
            kept = run / RESULTS if (run / RESULTS).is_dir() else None
            yield f"{name}/{row['name']}", Source(results=kept, model=str(run / stage), run=run, stage=stage)


def _of_domain(name: str, path: Path, found: Found) -> Iterator[tuple[str, Source]]:
    stages = [stage.name for stage in found.stages]
    if found.state != "finished":
        raise ValueError(f"the domain run {path} is not finished: {found.summary}; give its first command again")
    untrained = sorted((path / RESULTS).glob("untrained-*"), key=lambda one: (_score(one), one.name), reverse=True)
    for results in untrained:  # the best is the base of the comparison
        yield f"{name}/{results.name}", Source(results=results)
    for stage in stages:
        run = path / "model"
        results = path / RESULTS / stage
        yield f"{name}/{stage}", Source(results=results, model=str(run / stage), run=run, stage=stage)


def _is_domain(path: str) -> bool:
    folder = Path(path).expanduser()
    return folder.is_dir() and inspect(folder).kind == "domain run"


def _score(results: Path) -> float:
    return read_folder(results)[0].result.main_score  # of one task


def _said(found: Found) -> str:
    what = "it holds nothing that embrew wrote" if found.kind == "folder" else f"it is of the kind {found.kind!r}"
    problems = f" ({'; '.join(found.problems)})" if found.problems else ""
    return f"{what}, {found.state}{problems}" if found.state != "finished" else what
