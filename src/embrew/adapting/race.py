"""One start of a race: scored as it is, trained for some minutes, and scored again. Finished parts are kept."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embrew.adapting.baselines import score
from embrew.adapting.defaults import Defaults, ModelDefaults
from embrew.adapting.leaks import check
from embrew.adapting.negatives import mined_pairs
from embrew.adapting.outcome import Row
from embrew.adapting.prepare import Prepared, check_same
from embrew.adapting.recipes import (
    as_described,
    steps_in_time,
    text_lengths,
    trained_recipe,
    untrained_recipe,
    write_recipe,
    written_recipe,
)
from embrew.adapting.starts import Start, reading_of
from embrew.analysis.dev_uniformity import evaluation_of
from embrew.data.reading import expand
from embrew.encoder import Encoder
from embrew.evaluation import Result, find_task
from embrew.evaluation.paths import write_paths
from embrew.files import formats
from embrew.files.checksums import file_sha256
from embrew.files.reading import BrokenFile, read_json
from embrew.files.sealed import sealed
from embrew.files.writing import write_json
from embrew.progress import within
from embrew.recipe import Recipe, build
from embrew.recipe.overrides import Override, as_text
from embrew.report.sources import RECIPES
from embrew.storage.loading import final_stage, read_settings
from embrew.storage.parts import BASE
from embrew.training.stages import train

logger = logging.getLogger(__name__)
PLANS, MINED, TRAINED, RESULTS, DEV = "plans", "mined", "model", "results", "dev"
AS_IS, CONTRAST = "as-is", "contrast"
TIMED, PASSES = 64, 3  # texts, and how often they are encoded to take the time
REPAIR = "remove the file; the same command makes it again"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How models are adapted; see `adapt`."""

    method: str
    defaults: Defaults
    overrides: tuple[Override, ...]
    seed: int
    export: bool
    quick: bool


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A start in an output folder.

    Attributes:
        start: the model.
        data: the prepared data.
        folder: the output folder.
        settings: of the call.
        methods: what is trained of a bare language model, by name; of each the choices by pooling.
    """

    start: Start
    data: Prepared
    folder: Path
    settings: Settings
    methods: Mapping[str, Mapping[str, ModelDefaults]]

    def place(self, what: str, name: str) -> Path:
        """Return a folder of this start within one of the output folder."""
        return self.folder / what / f"{self.start.name}--{name}"

    def recipe(self, name: str) -> Path:
        """Return the file of a recipe of this start."""
        return self.folder / RECIPES / f"{self.start.name}--{name}.yaml"

    @property
    def _common(self) -> dict[str, Any]:
        return {"batch_tokens": self.settings.defaults.batch_tokens}

    def rows(self) -> list[Row]:
        """Score the start, train it, and score what was trained; or what is missing of that."""
        with within(self.start.name):
            plan = self._bare_plan() if self.start.is_bare else self._ready_plan()
            rows = [self._as_is(plan)]
            rows += [self._trained(name, plan, rows[0]) for name in plan["trained"]]
        return rows

    # ---- what is trained -----------------------------------------------------------------------------------

    def kept_plan(self) -> dict[str, Any] | None:
        """Return the plan of an earlier call with the same settings; None: there is none, or one without training.

        Raises:
            FileExistsError: it has other settings.
        """
        plan = self.folder / PLANS / f"{self.start.name}.json"
        if not plan.is_file():
            return None
        kept = read_json(plan, keys=("asked", "trained", "as_is"), repair=REPAIR, sealed=True)
        check_same({**self._asked, "trains": kept["asked"]["trains"]}, kept["asked"], self.folder)
        if self.start.trains and not kept["asked"]["trains"]:
            return None
        for name, sha256 in kept["files"].items():
            file = self.folder / name
            if not file.is_file() or file_sha256(file) != sha256:
                raise BrokenFile(
                    f"{file} is missing or has changed since it was written; remove {plan}, and the same command "
                    "plans again; for a setting of your own, give it as key.path=value and another output folder"
                )
        return kept

    @property
    def _asked(self) -> dict[str, Any]:
        return {
            "model": self.start.fingerprint,
            "trains": self.start.trains,
            "method": self.settings.method,
            "defaults": json.loads(self.settings.defaults.model_dump_json()),
            "overrides": [as_text(override) for override in self.settings.overrides],
            "seed": self.settings.seed,
            "data": self.data.manifest["made_of"]["sha256"],
        }

    def _write_plan(self, trained: Sequence[str], **more: Any) -> dict[str, Any]:
        files = [*map(self.recipe, trained), self.folder / MINED / f"{self.start.name}.jsonl"]
        plan = {
            "asked": self._asked,
            "trained": list(trained),
            "minutes": self.settings.defaults.minutes,
            "files": {str(file.relative_to(self.folder)): file_sha256(file) for file in files if file.is_file()},
            **more,
        }
        (self.folder / PLANS).mkdir(exist_ok=True)
        write_json(self.folder / PLANS / f"{self.start.name}.json", sealed(plan))
        return plan

    def _with_negatives(self, encoder: Encoder, milliseconds: float) -> Lane:
        """Return the start with pairs that have mined negatives, and the minutes that mining leaves.

        Args:
            encoder: finds them.
            milliseconds: it takes for a text.
        """
        chosen, defaults = self.settings.defaults.negatives, self.settings.defaults
        file = self.folder / MINED / f"{self.start.name}.jsonl"
        timed: Any = {"milliseconds": milliseconds, "minutes": defaults.minutes}
        seconds = None if chosen is None else mined_pairs(encoder, self.data, file, chosen, asked=self._asked, **timed)
        if seconds is None:
            return self
        left = defaults.model_copy(update={"minutes": max(defaults.minutes - seconds / 60, defaults.minutes / 2)})
        return replace(self, data=replace(self.data, mined=file), settings=replace(self.settings, defaults=left))

    def _bare_plan(self) -> dict[str, Any]:
        """Score the untrained poolings on dev, and plan contrast from the better of two of them, and the method."""
        defaults, kept, model = self.settings.defaults, self.kept_plan(), self.start.model
        of_recipe: Any = {"overrides": self.settings.overrides, "seed": self.settings.seed}
        logger.info("opening %s", self.start.name)
        encoder = build.encoder(untrained_recipe(model, "mean", **of_recipe))
        lengths = kept["lengths"] if kept else text_lengths(encoder, self.data, defaults.longest)
        of_recipe |= {"lengths": lengths, "encoder": encoder}
        recipes = {name: untrained_recipe(model, name, **of_recipe) for name in defaults.poolings}
        scored = {}
        for name, recipe in recipes.items():
            place = self.place(DEV, name)
            scored[name] = score(as_described(encoder, recipe), self.data.dev, "dev", place, name=name, **self._common)
        scores = {name: result.main_score for name, result in scored.items()}
        best = max(scores, key=lambda name: scores[name])
        logger.info("without training, the best pooling on dev is %s (%.1f)", best, 100 * scores[best])
        write_recipe(self.recipe(AS_IS), recipes[best], f"{best}: the best untrained pooling on dev.")
        if kept:
            return kept
        begin = max(defaults.contrast, key=lambda name: scores.get(name, -1.0))
        seconds = scored[begin].seconds if begin in scored else max(result.seconds for result in scored.values())
        milliseconds = _milliseconds(as_described(encoder, recipes[best]), self.data)
        trained = self.methods if self.start.trains else {}
        planned = (
            self._with_negatives(as_described(encoder, recipes.get(begin, recipes[best])), milliseconds)
            if trained
            else self
        )
        for name, choices in trained.items():
            chosen, of_pooling = choices.get(begin) or choices[""], f" from {begin} pooling" if len(choices) > 1 else ""
            planned._plan_recipe(name, chosen, seconds, of_recipe, said=of_pooling)
        return self._write_plan(
            list(trained),
            as_is=best,
            poolings=scores,
            lengths=lengths,
            parameters=_parameters(encoder.backbone),
            milliseconds=milliseconds,
        )

    def _ready_plan(self) -> dict[str, Any]:
        """Score the model as it is on dev, and plan its training."""
        if (kept := self.kept_plan()) is not None:
            return kept
        logger.info("opening %s", self.start.name)
        opened = self.start.open()
        dev, parameters = self._scored(opened, AS_IS, "dev"), _parameters(opened)
        milliseconds = _milliseconds(opened, self.data)
        del opened
        logger.info("as it is, it has %.1f on dev", 100 * dev.main_score)
        more: dict[str, Any] = {"as_is": "", "parameters": parameters, "lengths": {}, "said": ""}
        more["milliseconds"] = milliseconds
        if not self.start.trains:
            return self._write_plan([], **more)
        try:
            encoder, reading = reading_of(self.start)
        except ValueError as error:
            logger.warning("%s is not trained: %s", self.start.name, error)
            return self._write_plan([], **{**more, "said": str(error)})
        lengths = text_lengths(encoder, self.data, self.settings.defaults.longest)
        lengths = {} if self.start.is_encoder else lengths  # which keeps its limits
        chosen = self.settings.defaults.ready.model(reading, parameters)
        of_recipe: Any = {"overrides": self.settings.overrides, "seed": self.settings.seed}
        of_recipe |= {"lengths": lengths, "encoder": encoder}
        planned = self._with_negatives(encoder, milliseconds)
        planned._plan_recipe(CONTRAST, chosen, dev.seconds, of_recipe)
        return self._write_plan([CONTRAST], **{**more, "lengths": lengths})

    @property
    def _source(self) -> Path | None:
        """The folder of an encoder that training starts from."""
        return final_stage(Path(self.start.model)) if self.start.is_encoder else None

    @property
    def _model(self) -> str:
        """The model that recipes name: of an encoder its base."""
        if self._source is None:
            return self.start.model
        base = read_settings(self._source)["base"]
        if base["kind"] != "folder":
            return str(base["name"])
        return str(self._source / BASE if (self._source / BASE).is_dir() else self._source)

    def _plan_recipe(
        self, name: str, chosen: ModelDefaults, dev_seconds: float, of_recipe: Mapping[str, Any], *, said: str = ""
    ) -> None:
        """Write the recipe of a model with the steps that the minutes allow, which are logged."""
        defaults, data = self.settings.defaults, self.data
        one_step = trained_recipe(self._model, chosen, data, defaults=defaults, **of_recipe)
        check(data.folder, _other_rows(one_step, data))
        steps, evaluations, seconds = steps_in_time(one_step, chosen, data, defaults, dev_seconds, self._source)
        if name == CONTRAST:
            rate = self._searched_rate(name, chosen, seconds[0], dev_seconds, of_recipe)
            if rate is not None:
                rest = defaults.model_copy(update={"minutes": defaults.minutes * (1 - defaults.rates.share)})
                of_recipe = {**of_recipe, "overrides": [*of_recipe["overrides"], rate]}
                steps, evaluations, _ = steps_in_time(one_step, chosen, data, rest, dev_seconds, each=seconds)
        timed: Any = {**of_recipe, "steps": steps, "evaluations": evaluations}
        recipe = trained_recipe(self._model, chosen, data, defaults=defaults, **timed)
        counts = [stage.training["max_steps"] for stage in recipe.stages]
        total = sum(count * one for count, one in zip(counts, seconds, strict=True))
        each = zip(recipe.stages, counts, seconds, strict=True)
        words = ", ".join(f"{stage.name} {count} steps of {one:.2g} s" for stage, count, one in each)
        logger.info("%s: %s; about %.1f min", name, words, total / 60)
        minutes = f"in about {defaults.minutes:g} minutes on the machine that planned it"
        write_recipe(self.recipe(name), recipe, f"{self.start.name}, {name}{said}, {minutes}.")

    def _searched_rate(
        self, name: str, chosen: ModelDefaults, seconds: float, dev_seconds: float, of_recipe: Mapping[str, Any]
    ) -> Override | None:
        """Return the learning rate whose first steps are the best on dev; None: too few fit, or a rate is given.

        Scores are kept, so that a stopped search goes on; the encoders are not.
        """
        rates, stage = self.settings.defaults.rates, chosen.stages[0].stage
        key = f"stages.{stage['name']}.training.learning_rate"
        if any(as_text(override).startswith(f"{key}=") for override in self.settings.overrides):
            return None
        time_of_each = 60 * self.settings.defaults.minutes * rates.share / len(rates.factors)
        steps = int((time_of_each - 2 * dev_seconds) / seconds)
        if steps < rates.least:
            logger.info("the minutes allow %d steps for each learning rate, so none is searched", max(0, steps))
            return None
        file = self.folder / PLANS / f"{self.start.name}--rates.json"
        file.parent.mkdir(exist_ok=True)
        scores = dict[str, float]()
        if file.is_file():
            kept = read_json(file, keys=("asked", "steps", "scores"), repair=REPAIR, sealed=True)
            check_same(self._asked, kept["asked"], self.folder)
            steps, scores = kept["steps"], kept["scores"]
        for factor in rates.factors:
            rate = f"{factor * stage['training']['learning_rate']:.2g}"
            write_json(file, sealed({"asked": self._asked, "steps": steps, "scores": scores}))
            if rate in scores:
                continue
            overrides = [*of_recipe["overrides"], (key, float(rate))]
            recipe = trained_recipe(
                self._model,
                chosen,
                self.data,
                defaults=self.settings.defaults,
                **{**of_recipe, "overrides": overrides, "steps": [steps], "evaluations": 2},
            )
            run = self.place(TRAINED, f"rate-{rate}")
            with within(f"{name}, rate {rate}"):
                encoder = train(recipe, run, resume=run.exists(), evaluate=evaluation_of(recipe), start=self._source)
                scores[rate] = self._scored(encoder, f"rate-{rate}", "dev").main_score
            shutil.rmtree(run)
        write_json(file, sealed({"asked": self._asked, "steps": steps, "scores": scores}))
        best = max(scores, key=lambda rate: scores[rate])
        logger.info("of %d steps each, the learning rate %s is the best on dev: %s", steps, best, scores)
        return key, float(best)

    # ---- scores ----------------------------------------------------------------------------------------------

    def _scored(self, encoder: Any, name: str, split: str) -> Result:
        folder, place = (self.data.dev, DEV) if split == "dev" else (self.data.test, RESULTS)
        return score(encoder, folder, split, self.place(place, name), name=name, **self._common)

    def _as_is(self, plan: Mapping[str, Any]) -> Row:
        """Return the scores of the model as it is; of a bare language model in its best untrained pooling."""
        if self.start.is_bare:
            encoder = self.open_as_is()
            dev = score(
                encoder, self.data.dev, "dev", self.place(DEV, plan["as_is"]), name=plan["as_is"], **self._common
            )
        else:
            encoder = self.start.open()
            dev = self._scored(encoder, AS_IS, "dev")
        test = self._scored(encoder, AS_IS, "test")
        place = self.place(RESULTS, AS_IS)
        if not self.start.is_bare:
            write_paths(place, self.start.model, [find_task(self.data.test)])
        return Row(
            name=f"{self.start.name}, {plan['as_is']}" if self.start.is_bare else self.start.name,
            start=self.start.name,
            dev=dev,
            test=test,
            results=place,
            model=str(self.recipe(AS_IS)) if self.start.is_bare else self.start.model,
            dimensions=int(encoder.get_embedding_dimension()),
            parameters=plan["parameters"],
            milliseconds=plan["milliseconds"],
        )

    def open_as_is(self) -> Any:
        """Return the start as it was scored."""
        if not self.start.is_bare:
            return self.start.open()
        return build.encoder(Recipe.load(self.recipe(AS_IS), [("encoder.model", self.start.model)]))

    def open_row(self, row: Row) -> Any:
        """Return the encoder of a row of this start."""
        if row.stage is None:
            return self.open_as_is()
        trusted = Recipe.load(row.stage / "recipe.yaml").encoder.trust_remote_code
        return Encoder.from_pretrained(row.stage, dtype="as_trained", trust_remote_code=trusted)

    def open_to_train(self) -> Encoder | None:
        """Return a ready start as an encoder; None: it is read as it is only."""
        try:
            return reading_of(self.start)[0]
        except ValueError as error:
            logger.warning("%s", error)
            return None

    def _trained(self, name: str, plan: Mapping[str, Any], as_is: Row) -> Row:
        """Train a model, or resume, and return its scores; those of the start where no step was better on dev."""
        recipe = written_recipe(self.recipe(name), self._model, self.settings.overrides)
        run = self.place(TRAINED, name)
        with within(name):
            train(recipe, run, resume=run.exists(), evaluate=evaluation_of(recipe), start=self._source)
        stage = run / recipe.stages[-1].name
        log = read_json(run / "run.json", keys=("seconds",), kind=formats.RUN)
        trusted = recipe.encoder.trust_remote_code
        encoder = Encoder.from_pretrained(stage, dtype="as_trained", trust_remote_code=trusted)
        dev = self._scored(encoder, name, "dev")
        row = replace(
            as_is,
            name=f"{self.start.name}, {'trained' if name == CONTRAST else name}",
            seconds=sum(log["seconds"].values()),
            kept=0,
            steps=recipe.stages[-1].training["max_steps"],
        )
        if dev.main_score <= as_is.dev.main_score:
            logger.info("no step was better on dev (%.1f) than the start, which stays", 100 * dev.main_score)
            return row
        place = self.place(RESULTS, name)
        test = self._scored(encoder, name, "test")
        write_paths(place, str(stage), [find_task(self.data.test)])
        kept = log.get("kept", {}).get(stage.name)
        return replace(row, dev=dev, test=test, results=place, model=str(stage), stage=stage, kept=kept)


def _milliseconds(encoder: Any, data: Prepared) -> float:
    """Return the time per text of encoding some documents in one call; the shortest of `PASSES`."""
    texts, seconds = data.texts()["document"][:TIMED], []
    for _ in range(PASSES):
        began = time.perf_counter()
        encoder.encode_document(texts, show_progress_bar=False)
        seconds.append(time.perf_counter() - began)
    return 1000 * min(seconds) / len(texts)


def _parameters(model: Any) -> int:
    """Return the number of weights of a model; of a runtime that has none to show, 0."""
    return sum(weight.numel() for weight in model.parameters()) if hasattr(model, "parameters") else 0


def _other_rows(recipe: Recipe, data: Prepared) -> Iterator[Mapping[str, Any]]:
    """Yield the training rows of a recipe that are not from the prepared folder (by overrides)."""
    for stage in recipe.stages:
        for config in stage.datasets:
            if any(Path(expand(path)).resolve().parent != data.folder.resolve() for path in config.paths):
                yield from build.rows(config, build.objective(stage.objective), max_rows=config.max_rows)
