"""Where a model of a report comes from: its results, the encoder, and the run that trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from embrew.config.yaml_files import parse_yaml
from embrew.files.formats import GAP, RUN
from embrew.files.names import base_name, path_inside, shown_path
from embrew.files.reading import read_json
from embrew.opening import is_recipe
from embrew.recipe import Recipe
from embrew.storage.parts import BASE

RECIPE = "recipe.yaml"  # in the folder of a trained encoder


class Training(NamedTuple):
    """What training a model took, over all its stages; None: the run does not say."""

    seconds: float | None
    samples: int | None


@dataclass(frozen=True)
class Source:
    """Where one seed of a model comes from.

    Attributes:
        results: Folder of its results; None if it has to be evaluated.
        model: What `open_model` opens; with `untrained`, a trained encoder whose base is meant. None: the encoder is
            not known.
        untrained: The encoder is the one that the recipe of `model` describes, before training.
        run: Folder of the training run.
        stage: Last stage of the run that the model was trained in.
        how: Overrides, data type and backend, of an encoder that another command has opened.
        pooling: Of a language model without embedding settings, as `open_model` takes it.
        stored: The folder of `model` was not given, but read beside the results; it may have changed since.
        unknown: Why the encoder that was stored is not used; empty if none was.
    """

    results: Path | None = None
    model: str | None = None
    untrained: bool = False
    run: Path | None = None
    stage: str | None = None
    how: tuple[str, ...] = ()
    pooling: str | None = None
    stored: bool = False
    unknown: str = ""

    def open(self) -> Any:
        """Return the encoder."""
        assert self.model is not None
        from embrew import assembly, opening

        if self.untrained:
            recipe = Recipe.load(Path(self.model) / RECIPE)
            name, kept = recipe.encoder.model, Path(self.model) / BASE
            config = recipe.encoder.model_copy(update={"model": str(kept) if kept.is_dir() else name})
            # without a LoRA, whose start is random
            built = assembly.encoder(recipe.model_copy(update={"stages": [], "encoder": config}))
            if kept.is_dir():
                built.base = replace(built.base, name=base_name(name))
            return built
        return opening.open_model(self.model, as_trained=True, pooling=self.pooling)

    def shown(self, text: object) -> str:
        """Return a path or a message as a page shows it: of a stored run, without the folders of this machine."""
        shown = str(text)
        for folder in (self.run, self.model) if self.stored else ():
            if folder is not None:
                shown = shown.replace(str(folder), shown_path(Path(folder)))
        return shown

    def without_encoder(self, reason: str) -> Source:
        """Return the results alone, with the reason why the stored encoder is not used."""
        assert self.model is not None
        return Source(results=self.results, unknown=f"{shown_path(Path(self.model))} {reason}")

    def fingerprint(self) -> list[Any]:
        """Return what changes if the encoder does: names, sizes and times of change of its files, or its recipe."""
        assert self.model is not None
        path = Path(self.model)
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            about = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
            return ["untrained" if self.untrained else "folder", about, self.how, self.pooling]
        if is_recipe(self.model):
            return ["recipe", Recipe.load(self.model).to_yaml(), self.how]
        return ["name", self.model, self.how, self.pooling]

    def log(self) -> dict[str, Any]:
        """Return `run.json` of the run; empty without a run."""
        return {} if self.run is None else read_json(self.run / RUN.file, kind=RUN)

    def stages(self) -> list[str]:
        """Return the stages that the model was trained in, in their order."""
        if self.stage is None:
            return []
        names = list(self.log().get("stages") or [self.stage])
        return names[: names.index(self.stage) + 1] if self.stage in names else [self.stage]

    def training(self) -> Training:
        """Return time and samples of all stages."""
        log = self.log()
        seconds = [log.get("seconds", {}).get(name) for name in self.stages()]
        counts = [log.get("samples", {}).get(name, {}) for name in self.stages()]
        samples = [one["a_step"] * one["steps"] if {"a_step", "steps"} <= one.keys() else None for one in counts]
        return Training(_sum(seconds), _sum(samples))

    def gaps(self) -> dict[str, dict[str, Any]]:
        """Return what `run.json` says of the share of the gap closed, by compression stage."""
        found = self.log().get(GAP, {})
        return {name: found[name] for name in self.stages() if found.get(name, {}).get("curve")}

    def recipe(self) -> Recipe | None:
        """Return the recipe of the run; None if it is not known."""
        if self.run is None or self.stage is None:
            return None
        file = path_inside(self.run, self.stage, source=self.run / RUN.file, key="stages") / RECIPE
        if not file.is_file():
            return None
        values: Any = parse_yaml(file.read_text(encoding="utf-8"), source=str(file))
        return Recipe.from_values(values, source=str(file)) if isinstance(values, Mapping) else None


@dataclass(frozen=True)
class Given:
    """A model that a report was asked for: a name, and one source per seed.

    Attributes:
        candidate: The verdict is about this model, as in the report of a domain run: see `Comparison`.
    """

    name: str
    seeds: tuple[Source, ...]
    candidate: bool = False


def _sum(values: list[Any]) -> Any:
    return sum(values) if values and all(value is not None for value in values) else None
