"""Where the models of a report come from: the folders that a user names, their encoders and training runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from embrew.evaluation.results import read_paths
from embrew.files.formats import ENCODER, GAP, RUN, STAGE, SWEEP
from embrew.files.names import base_name, from_home, path_inside, shown_path
from embrew.files.reading import read_json
from embrew.inspection import Contents, inspect
from embrew.opening import is_recipe
from embrew.recipe import Recipe
from embrew.recipe.recipe import beside, with_paths
from embrew.report.comparison import folders_by_name, pooling_of_results, with_pooling
from embrew.settings.yaml_files import parse_yaml
from embrew.storage.foreign import check_is_model
from embrew.storage.parts import BASE

logger = logging.getLogger(__name__)
Number = TypeVar("Number", int, float)
RECIPE = "recipe.yaml"  # in the folder of a trained encoder
RESULTS = "results"  # folder of results in a row of a sweep
RECIPES = "recipes"  # folder in an adaptation
ACCEPTED = (
    "results, an encoder, a training run or one of its stages, a sweep, an adaptation, an export, a "
    "Sentence-Transformers folder, or a recipe without stages"
)


@dataclass(frozen=True)
class ModelSource:
    """Where one seed of a model comes from.

    Attributes:
        results: Folder of its results; None if it has to be evaluated.
        model: Argument of `open_model`; with `untrained`, a recipe, or a trained encoder whose base is meant. None: the
            encoder is not known.
        untrained: Whether nothing was trained: the encoder is the one that the recipe describes, or it is BM25.
        run: Folder of the training run.
        stage: Last stage of the run that the model was trained in.
        pooling: Pooling of a language model without embedding settings, as `open_model` takes it.
        stored: Whether `model` was not given, but read from a file beside the results; it may have changed since.
        unknown: Reason why the encoder of the results is not used; empty if there is none.
    """

    results: Path | None = None
    model: str | None = None
    untrained: bool = False
    run: Path | None = None
    stage: str | None = None
    pooling: str | None = None
    stored: bool = False
    unknown: str = ""

    def open(self) -> Any:
        """Return the encoder."""
        assert self.model is not None
        from embrew import opening
        from embrew.recipe import build

        if not self.untrained:
            return opening.open_model(self.model, as_trained=True, pooling=self.pooling)
        recipe = Recipe.load(Path(self.model) / RECIPE)
        name, own_base = recipe.encoder.model, Path(self.model) / BASE
        config = recipe.encoder.model_copy(update={"model": str(own_base) if own_base.is_dir() else name})
        # without a LoRA, whose start is random
        encoder = build.encoder(recipe.model_copy(update={"stages": [], "encoder": config}))
        if own_base.is_dir():
            encoder.base = replace(encoder.base, name=base_name(name))
        return encoder

    def public_text(self, text: object) -> str:
        """Return a path or a message as a page shows it: of a stored run, without the folders of this machine."""
        public = str(text)
        for folder in (self.run, self.model) if self.stored else ():
            if folder is not None:
                public = public.replace(str(folder), shown_path(Path(folder)))
        return public

    def log(self) -> dict[str, Any]:
        """Return `run.json` of the run; empty without a run."""
        return {} if self.run is None else read_json(self.run / RUN.file, kind=RUN)

    def stages(self) -> list[str]:
        """Return the stages that the model was trained in, in their order."""
        if self.stage is None:
            return []
        names = list(self.log().get("stages") or [self.stage])
        return names[: names.index(self.stage) + 1] if self.stage in names else [self.stage]

    def training(self) -> tuple[float | None, int | None]:
        """Return seconds and samples of all stages; None where the run does not say."""
        log = self.log()
        seconds: list[float | None] = [log.get("seconds", {}).get(name) for name in self.stages()]
        samples: list[int | None] = []
        for counts in (log.get("samples", {}).get(name, {}) for name in self.stages()):
            samples.append(counts["a_step"] * counts["steps"] if {"a_step", "steps"} <= counts.keys() else None)
        return _sum(seconds), _sum(samples)

    def gaps(self) -> dict[str, dict[str, Any]]:
        """Return what `run.json` says of the share of the gap closed, by compression stage."""
        gaps = self.log().get(GAP, {})
        return {name: gaps[name] for name in self.stages() if gaps.get(name, {}).get("curve")}

    def recipe(self) -> Recipe | None:
        """Return the recipe of the run; None if it is not known."""
        if self.run is None or self.stage is None:
            return None
        file = path_inside(self.run, self.stage, source=self.run / RUN.file, key="stages") / RECIPE
        if not file.is_file():
            return None
        values: Any = parse_yaml(file.read_text(encoding="utf-8"), source=str(file))
        if not isinstance(values, Mapping):
            return None
        adaptation_recipes = self.run.absolute().parent.parent / RECIPES  # of an adaptation, which its paths start from
        return Recipe.from_values(with_paths(values, beside(adaptation_recipes, {}), data_only=True), source=str(file))


def read_sources(paths: Sequence[str]) -> dict[str, list[ModelSource]]:
    """Return the models of paths, each `PATH` or `NAME=PATH`: one source per seed, by name.

    A run is one model per stage, after the untrained encoder if that can be built; a sweep one per row; an
    adaptation the best untrained one first. Their names begin with that of the folder.

    Args:
        paths: Folders, recipes, Hub ids; those of one name are seeds of a model.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a folder that cannot be compared, a run that is not finished, a recipe that must be trained.
    """
    seeds: dict[str, list[ModelSource]] = {}
    for name, entries in folders_by_name(paths).items():
        for model, source in (each for entry in entries for each in _sources(name, entry)):
            seeds.setdefault(model, []).append(source)
    return seeds


def _sources(name: str, entry: str) -> Iterator[tuple[str, ModelSource]]:
    """Yield names and sources of the models that a path names."""
    path = from_home(entry)
    if path.is_dir():
        yield from _sources_of_folder(name, path)
    elif is_recipe(entry):
        recipe = Recipe.load(entry)
        if recipe.stages:
            raise ValueError(
                f"{entry} is a recipe with stages ({', '.join(stage.name for stage in recipe.stages)}); train it "
                f"(embrew train {quote(entry)} --output DIR) and give DIR"
            )
        yield name, ModelSource(model=entry)
    elif path.exists() or entry.startswith((".", "/", "~")) or entry.count("/") > 1:
        check_is_model(entry, path)
        raise FileNotFoundError(f"no folder {entry}; give {ACCEPTED}")
    else:
        yield name, ModelSource(model=entry)  # shipped with embrew, or on the Hub


def _sources_of_folder(name: str, path: Path) -> Iterator[tuple[str, ModelSource]]:
    folder = inspect(path)
    what = "it holds nothing that embrew wrote" if folder.kind == "folder" else f"it is of the kind {folder.kind!r}"
    if folder.state in ("damaged", "unreadable", "running"):
        problems = f" ({'; '.join(folder.problems)})" if folder.problems else ""
        raise ValueError(f"{path} cannot be compared: {what}, {folder.state}{problems}")
    match folder.kind:
        case "results":
            yield with_pooling(name, pooling_of_results(path)), _source_of_results(path)
        case "training run":
            yield from _sources_of_run(name, path, folder)
        case "sweep":
            yield from _sources_of_sweep(name, path)
        case "adaptation":
            yield from _sources_of_adaptation(name, path, folder)
        case "encoder":
            is_stage = (path.parent / RUN.file).is_file()
            of_run = ModelSource(run=path.parent, stage=path.name) if is_stage else ModelSource()
            yield name, replace(of_run, model=str(path))
        case "export":
            yield name, ModelSource(model=str(path))
        case _ if any(os.path.lexists(path / file) for file in ("modules.json", "config.json")):
            yield name, ModelSource(model=str(path))
        case "folder" | "folders" if folder.subfolders:
            inside = ", ".join(str(each.path) for each in folder.subfolders)
            raise ValueError(f"{path} holds several folders; give those that are to be compared: {inside}")
        case _:
            raise ValueError(f"{path} cannot be compared: {what}; give {ACCEPTED}")


def _source_of_results(path: Path) -> ModelSource:
    """Return results with the encoder that `embrew evaluate` stored the folder of, whose hash is not verified here."""
    alone, paths = ModelSource(results=path, pooling=pooling_of_results(path)), read_paths(path)
    if paths.model is None:
        return alone
    if not paths.model.is_dir():
        return replace(alone, unknown=f"{shown_path(paths.model)} is no longer a folder on this machine")
    try:
        is_model = inspect(paths.model).kind not in ("results", "adaptation")  # which may name results again
        *_, (_, encoder) = _sources_of_folder("", paths.model) if is_model else [("", alone)]
    except (OSError, ValueError) as error:
        logger.warning("the encoder of %s is not used: %s", path, error)
        encoder = alone
    if encoder.model is None:
        return replace(alone, unknown=f"{shown_path(paths.model)} holds no encoder")
    return replace(encoder, results=path, stored=True, pooling=alone.pooling or paths.pooling)


def _sources_of_run(name: str, path: Path, run: Contents) -> Iterator[tuple[str, ModelSource]]:
    finished = [stage.name for stage in run.stages if stage.state == "finished"]
    if run.state != "finished":
        stages = f", or give its finished stages: {' '.join(str(path / stage) for stage in finished)}"
        raise ValueError(
            f"the run {path} is not finished: {run.summary}; resume it: {run.commands['resume']}"
            f"{stages if finished else ''}"
        )
    first = path / finished[0]
    if _base_is_known(path, first):
        yield f"{name}/untrained", ModelSource(model=str(first), untrained=True)
    for stage in finished:
        yield f"{name}/{stage}", ModelSource(model=str(path / stage), run=path, stage=stage)


def _base_is_known(run: Path, stage: Path) -> bool:
    """Return whether the encoder before training can be built: its language model has a name, or is at hand."""
    start = read_json(stage / STAGE.file, kind=STAGE).get("start")
    base = read_json(stage / ENCODER.file, keys=("base",), kind=ENCODER)["base"]
    if start is not None or not (stage / RECIPE).is_file():
        return False
    if base["kind"] != "folder" or (stage / BASE).is_dir():
        return True
    from embrew.storage.base_model import local_model, weights_sha256  # imports torch, which results do not need

    folder = local_model(Recipe.load(stage / RECIPE).encoder.model)
    if folder is not None and weights_sha256(folder) == base["sha256"]:
        return True
    logger.warning(
        "%s: the untrained base is left out, since the folder of %s is not known or has changed; to include it, give "
        "untrained=FOLDER first",
        run,
        base["name"],
    )
    return False


def _sources_of_sweep(name: str, path: Path) -> Iterator[tuple[str, ModelSource]]:
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
            results = run / RESULTS if (run / RESULTS).is_dir() else None
            yield f"{name}/{row['name']}", ModelSource(results=results, model=str(run / stage), run=run, stage=stage)


def _sources_of_adaptation(name: str, path: Path, run: Contents) -> Iterator[tuple[str, ModelSource]]:
    if run.state != "finished":
        raise ValueError(f"the adaptation {path} is not finished: {run.summary}; give its first command again")
    for row in read_json(path / "adapted.json", keys=("models",), sealed=True)["models"]:
        if row["kept_step"] == 0:  # its scores are those of the start
            continue
        results = path_inside(path, row["results"], source=path / "adapted.json", key="results")
        source = ModelSource(results, untrained=True)
        if row["encoder"] is not None:
            stage = path_inside(path, row["encoder"], source=path / "adapted.json", key="encoder")
            source = ModelSource(results, str(stage), run=stage.parent, stage=stage.name)
        yield f"{name}/{row['model']}", source


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Return the sum of numbers; None if there are none, or one is not known."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers and len(numbers) == len(values) else None
