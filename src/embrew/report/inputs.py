"""The models that a report is asked for, from the folders that a user names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from embrew.comparison.models import chosen_in, named, read_folder, with_pooling
from embrew.evaluation.paths import read_paths
from embrew.files.formats import ENCODER, RUN, SWEEP
from embrew.files.names import path_inside, shown_path
from embrew.files.reading import read_json
from embrew.inspection import Contents, inspect
from embrew.opening import is_recipe
from embrew.recipe import Recipe
from embrew.report.source import RECIPE, Given, Source
from embrew.storage.foreign import check_is_model
from embrew.storage.parts import BASE

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
    for given, folder in (folders or {}).items():
        name = next((key for key in seeds if with_pooling(given, seeds[key][0].pooling) == key), given)
        if name not in seeds or any(source.results is None or source.model for source in seeds[name]):
            known = [one for one, sources in seeds.items() if all(source.model is None for source in sources)]
            raise ValueError(
                f"--model {given}={folder}: no result folder has this name; choose from {', '.join(known) or 'none'}"
            )
        ((_, encoder),) = _one_encoder(given, folder)
        first, *others = seeds[name]
        seeds[name] = [replace(encoder, results=first.results, pooling=first.pooling), *others]
    models = [Given(name, tuple(sources)) for name, sources in seeds.items()]
    if len(paths) == 1 and _is_domain(entry):
        models[-1] = replace(models[-1], candidate=True)
    return models


def with_stored(given: Sequence[Given]) -> list[Given]:
    """Return the models with the encoders that `embrew evaluate` stored the folders of, where none is given.

    Of several seeds only the first is measured. A stored encoder is not verified here: see `measured`.
    """
    return [replace(one, seeds=(_stored(one.seeds[0]), *one.seeds[1:])) for one in given]


def _stored(source: Source) -> Source:
    if source.results is None or source.model is not None:
        return source
    paths = read_paths(source.results)
    path = paths.model
    if path is None:
        return source
    if not path.is_dir():
        return replace(source, unknown=f"{shown_path(path)} is no longer a folder on this machine")
    try:
        *_, (_, found) = _of_folder("", path)
    except (OSError, ValueError) as error:
        logger.warning("the encoder of %s is not used: %s", source.results, error)
        found = Source()
    if found.model is None:
        return replace(source, unknown=f"{shown_path(path)} holds no encoder")
    return replace(found, results=source.results, stored=True, pooling=paths.pooling)


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
        check_is_model(entry, path)
        raise FileNotFoundError(f"no folder {entry}; give {ACCEPTED}")
    else:
        yield name, Source(model=entry)  # shipped with embrew, or on the Hub


def _of_folder(name: str, path: Path) -> Iterator[tuple[str, Source]]:
    found = inspect(path)
    if found.state in ("damaged", "unreadable", "running"):
        raise ValueError(f"{path} cannot be compared: {_said(found)}")
    match found.kind:
        case "results":
            pooling = chosen_in(path)
            yield with_pooling(name, pooling), Source(results=path, pooling=pooling)
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


def _of_run(name: str, path: Path, found: Contents) -> Iterator[tuple[str, Source]]:
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
    """Return whether the encoder before training can be built: its language model has a name, or is at hand."""
    start = read_json(run / RUN.file, kind=RUN).get("command", [])
    base = read_json(stage / ENCODER.file, keys=("base",), kind=ENCODER)["base"]
    if "--from" in start or not (stage / RECIPE).is_file():
        return False
    if base["kind"] != "folder" or (stage / BASE).is_dir():
        return True
    from embrew.storage.base_model import weights_sha256  # imports torch, which results do not need

    folder = Path(Recipe.load(stage / RECIPE).encoder.model)
    if folder.is_dir() and weights_sha256(folder) == base["sha256"]:
        return True
    logger.warning(
        "%s: the untrained base is left out, since the folder of %s is not known or has changed; to include it, give "
        "untrained=FOLDER first",
        run,
        base["name"],
    )
    return False


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


def _of_domain(name: str, path: Path, found: Contents) -> Iterator[tuple[str, Source]]:
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


def _said(found: Contents) -> str:
    what = "it holds nothing that embrew wrote" if found.kind == "folder" else f"it is of the kind {found.kind!r}"
    problems = f" ({'; '.join(found.problems)})" if found.problems else ""
    return f"{what}, {found.state}{problems}" if found.state != "finished" else what
