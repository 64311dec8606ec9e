"""A model in a race (`adapting.run`): its files, plan, scores before training, training and scores after it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypedDict

from embrew.adapting.baselines import score_hybrid
from embrew.adapting.defaults import ModelDefaults, RaceOptions
from embrew.adapting.outcome import RaceRow
from embrew.adapting.preparation.prepare import Prepared, check_same_settings
from embrew.adapting.recipes import load_written_recipe
from embrew.adapting.starts import SizedEncoder, Start, open_to_train
from embrew.analysis.uniformity import evaluation_of
from embrew.encoder import Encoder
from embrew.evaluation import Result, evaluate, find_task
from embrew.evaluation.results import write_paths
from embrew.files import formats
from embrew.files.checksums import file_sha256, sealed
from embrew.files.reading import BrokenFile, read_json
from embrew.files.writing import write_json
from embrew.progress import is_chosen, within
from embrew.recipe import Recipe, build
from embrew.recipe.overrides import as_text
from embrew.report.sources import RECIPES
from embrew.storage.loading import final_stage, read_settings
from embrew.storage.parts import BASE
from embrew.training.stages import train

logger = logging.getLogger(__name__)
REPAIR = "delete the file; the same command writes it again"
PLANS, MINED, TRAINED, RESULTS, DEV = "plans", "mined", "model", "results", "dev"
"""Folders in the output folder."""
AS_IS, CENTERED, CONTRAST, BM25 = "as-is", "centered", "contrast", "bm25"


class PlanInputs(TypedDict):
    """Model, data and options that a plan depends on; `data` is the sha256 of the data."""

    model: str
    trains: bool
    method: str
    defaults: dict[str, Any]
    overrides: list[str]
    seed: int
    data: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained of a model, and what was measured of it before.

    Attributes:
        inputs: model, data and options that the plan depends on.
        trained: names of the recipes to train.
        minutes: time of training of each recipe.
        files: sha256 of the recipes, of mined pairs and of the list of a centred encoder, by path in the output
            folder.
        as_is: name of a bare language model's best untrained pooling on dev; empty for other models.
        parameters: number of the model's weights.
        milliseconds: time to encode a text.
        lengths: numbers of tokens that recipes leave to queries and to documents.
        poolings: dev scores of untrained poolings, by name.
        why_untrained: reason why a model that was to be trained cannot be; empty for other models.
    """

    inputs: PlanInputs
    trained: Sequence[str]
    minutes: float
    files: Mapping[str, str]
    as_is: str = ""
    parameters: int
    milliseconds: float
    lengths: Mapping[str, int]
    poolings: Mapping[str, float] = field(default_factory=dict)
    why_untrained: str = ""

    def write(self, file: Path) -> None:
        """Write the plan, with its sha256."""
        file.parent.mkdir(exist_ok=True)
        write_json(file, sealed(vars(self)))


def read_plan(file: Path, folder: Path, *, inputs: PlanInputs) -> Plan | None:
    """Return the plan of an earlier call with the same inputs; None: there is none, or one without training.

    Args:
        file: the plan.
        folder: the output folder, which holds the files that the plan lists.
        inputs: model, data and options of this call; a model that was trained may be scored only.

    Raises:
        BrokenFile: the plan, or a file that it lists, has changed since it was written.
        FileExistsError: it has other inputs.
    """
    if not file.is_file():
        return None
    names = [entry.name for entry in fields(Plan)]
    values = read_json(file, keys=names, repair=REPAIR, sealed=True)
    plan = Plan(**{name: values[name] for name in names})
    check_same_settings({**inputs, "trains": plan.inputs["trains"]}, plan.inputs, folder)
    if inputs["trains"] and not plan.inputs["trains"]:
        return None
    for name, sha256 in plan.files.items():
        listed = folder / name
        if not listed.is_file() or file_sha256(listed) != sha256:
            raise BrokenFile(
                f"{listed} is missing or has changed since it was written; remove {file}, and the same command "
                "plans again; for a setting of your own, give it as key.path=value and another output folder"
            )
    return plan


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model in a race.

    Attributes:
        start: the model before training.
        data: the prepared data.
        folder: the output folder.
        options: the options of the race.
        methods: defaults for training a bare language model, by the name of the method and of the pooling.
    """

    start: Start
    data: Prepared
    folder: Path
    options: RaceOptions
    methods: Mapping[str, Mapping[str, ModelDefaults]]

    # ---- files -----------------------------------------------------------------------------------------------

    def subfolder(self, parent: str, name: str) -> Path:
        """Return a folder of this model, within one of the output folder."""
        return self.folder / parent / f"{self.start.name}--{name}"

    def recipe_file(self, name: str) -> Path:
        """Return the file of a recipe of this model."""
        return self.folder / RECIPES / f"{self.start.name}--{name}.yaml"

    @property
    def centered(self) -> Path:
        """The folder of a bare language model with its best untrained pooling, centred, if dev said that it pays."""
        return self.subfolder(TRAINED, CENTERED)

    @property
    def is_centered(self) -> bool:
        """Whether the plan's untrained pooling is the centred one."""
        plan = read_plan(self.plan_file, self.folder, inputs=self.inputs)
        return plan is not None and plan.as_is.endswith(f"-{CENTERED}")

    @property
    def as_is_model(self) -> str:
        """The folder, recipe or name that opens the model as it is scored before training."""
        if not self.start.is_bare:
            return self.start.model
        return str(self.centered if self.is_centered else self.recipe_file(AS_IS))

    @property
    def plan_file(self) -> Path:
        """The JSON file of the plan: which recipes are trained, for how long."""
        return self.folder / PLANS / f"{self.start.name}.json"

    @property
    def inputs(self) -> PlanInputs:
        """Model, data and options that its plan depends on."""
        return {
            "model": self.start.fingerprint,
            "trains": self.start.trains,
            "method": self.options.method,
            "defaults": json.loads(self.options.defaults.model_dump_json()),
            "overrides": [as_text(override) for override in self.options.overrides],
            "seed": self.options.seed,
            "data": self.data.manifest["made_of"]["sha256"],
        }

    # ---- the model -------------------------------------------------------------------------------------------

    @property
    def source(self) -> Path | None:
        """Folder of the encoder that training starts from; None: the recipe's model."""
        return final_stage(Path(self.start.model)) if self.start.is_saved_by_embrew else None

    @property
    def base_model(self) -> str:
        """The model that recipes name; if the start is an encoder, the base model of that."""
        if self.source is None:
            return self.start.model
        base = read_settings(self.source)["base"]
        if base["kind"] != "folder":
            return str(base["name"])
        return str(self.source / BASE if (self.source / BASE).is_dir() else self.source)

    def open_as_is(self) -> SizedEncoder:
        """Open the model as it is scored before training; a bare language model with its best untrained pooling."""
        if not self.start.is_bare:
            return self.start.open()
        if self.is_centered:
            trust = Recipe.load(self.recipe_file(AS_IS)).encoder.trust_remote_code
            return Encoder.from_pretrained(self.centered, trust_remote_code=trust)
        return build.encoder(Recipe.load(self.recipe_file(AS_IS), [("encoder.model", self.start.model)]))

    def open_row(self, row: RaceRow) -> SizedEncoder:
        """Open the encoder of a row of results of this model."""
        return self.open_as_is() if row.stage is None else open_stage(row.stage, dtype="as_trained")

    def open_to_train(self) -> Encoder | None:
        """Open an embedding model as an encoder that can be trained; None: it can only be scored."""
        try:
            return open_to_train(self.start)[0]
        except ValueError as error:
            logger.warning("%s", error)
            return None

    # ---- scores ----------------------------------------------------------------------------------------------

    def score(self, encoder: SizedEncoder, name: str, split: str) -> Result:
        """Return the scores of an encoder of this model on `dev` or `test`; finished ones are not computed again."""
        data, parent = (self.data.dev, DEV) if split == "dev" else (self.data.test, RESULTS)
        with within(name):
            (result,) = evaluate(
                encoder,
                [data],
                output_dir=self.subfolder(parent, name),
                split=split,
                batch_tokens=self.options.defaults.batch_tokens,
                show_progress_bar=is_chosen(),
            )
        return result

    def score_as_is(self, plan: Plan) -> RaceRow:
        """Score the model before training; a bare language model with its best untrained pooling."""
        encoder = self.open_as_is()
        dev = self.score(encoder, plan.as_is or AS_IS, "dev")
        test = self.score(encoder, AS_IS, "test")
        results = self.subfolder(RESULTS, AS_IS)
        if not self.start.is_bare:
            write_paths(results, self.start.model, [find_task(self.data.test)])
        return RaceRow(
            name=f"{self.start.name}, {plan.as_is}" if self.start.is_bare else self.start.name,
            start=self.start.name,
            dev=dev,
            test=test,
            results=results,
            model=self.as_is_model,
            dimensions=encoder.get_embedding_dimension(),
            parameters=plan.parameters,
            milliseconds=plan.milliseconds,
        )

    def train(self, name: str, as_is: RaceRow) -> RaceRow:
        """Train a recipe, or resume it, and return the scores; those of `as_is` if no checkpoint was better on dev."""
        recipe = load_written_recipe(self.recipe_file(name), self.base_model, self.options.overrides)
        run_folder = self.subfolder(TRAINED, name)
        with within(name):
            train(recipe, run_folder, resume=run_folder.exists(), evaluate=evaluation_of(recipe), start=self.source)
        stage_folder = run_folder / recipe.stages[-1].name
        run_log = read_json(run_folder / "run.json", keys=("seconds",), kind=formats.RUN)
        encoder = open_stage(stage_folder, dtype="as_trained")
        dev = self.score(encoder, name, "dev")
        row = replace(
            as_is,
            name=f"{self.start.name}, {'trained' if name == CONTRAST else name}",
            seconds=sum(run_log["seconds"].values()),
            best_step=0,
            steps=recipe.stages[-1].training["max_steps"],
        )
        if dev.main_score <= as_is.dev.main_score:
            scores = 100 * dev.main_score, 100 * as_is.dev.main_score
            logger.info("no step was better on dev than the model as it is (%.1f and %.1f), which stays", *scores)
            return row
        test = self.score(encoder, name, "test")
        results = self.subfolder(RESULTS, name)
        write_paths(results, str(stage_folder), [find_task(self.data.test)])
        best_step = run_log.get("kept", {}).get(stage_folder.name)
        row = replace(row, dev=dev, test=test, results=results, best_step=best_step)
        return replace(row, model=str(stage_folder), stage=stage_folder)

    def score_fused(self, row: RaceRow) -> RaceRow:
        """Score the encoder of a row of results of this model, its rankings fused with those of BM25."""
        name = f"{row.results.name}--{BM25}"
        open_encoder = cache(partial(self.open_row, row))
        dev, test = (
            score_hybrid(
                open_encoder,
                data,
                split,
                self.folder / parent / name,
                name=row.results.name,
                batch_tokens=self.options.defaults.batch_tokens,
            )
            for data, split, parent in ((self.data.dev, "dev", DEV), (self.data.test, "test", RESULTS))
        )
        fused = replace(row, name=f"{row.name} + BM25", dev=dev, test=test, results=self.folder / RESULTS / name)
        return replace(fused, model=None, stage=None, seconds=None, steps=None, best_step=None)


def open_stage(stage: Path, *, dtype: str = "auto") -> Encoder:
    """Open the encoder of a finished stage, with `trust_remote_code` as in its recipe."""
    trust = Recipe.load(stage / "recipe.yaml").encoder.trust_remote_code
    return Encoder.from_pretrained(stage, dtype=dtype, trust_remote_code=trust)
