"""`run.json`: the results of a run so far, rewritten after each change; and facts for the model card."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerState

from embrew.data.fingerprints import fingerprints
from embrew.data.reading import public_name
from embrew.encoder import Encoder
from embrew.files import formats
from embrew.files.checksums import sealed
from embrew.files.names import public_setting
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_path
from embrew.methods import Objective
from embrew.methods.base import DataRow
from embrew.model.encoder_module import CardFacts
from embrew.recipe import Recipe, StageConfig, build
from embrew.settings.yaml_files import dump_yaml
from embrew.text_encoder import vectors_hash
from embrew.training.stage_evaluation import (
    Evaluate,
    EvaluateSets,
    GapClosed,
    Point,
    StageEvaluation,
    check_metric,
    measure_start,
    only_sets,
    scores_line,
)

if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)
RUN = formats.RUN.file
BASE = "base_vectors"  # key: the hash of the untrained encoder's vectors
REPAIR = "remove it and run again with --resume: scores and times of finished stages are lost, their models are not"


def read_run(folder: Path) -> dict[str, Any]:
    """Return the content of a run's `run.json`, or `{}` if there is none.

    Raises:
        BrokenFile: the file is damaged.
        OtherFormat: it has another format number.
    """
    path = folder / RUN
    if not path.is_file():
        return {}
    values = read_json(path, kind=formats.RUN, repair=REPAIR)
    with content_of(path, repair=REPAIR):
        for key in ("scores", "seconds", "data"):
            if not isinstance(values.get(key, {}), dict):
                raise TypeError(f"{key} is not an object")
    return values


class RunResults:
    """Scores and data of a run, kept in `folder/run.json`.

    Attributes:
        values: content of the file, by stage: `scores`; `seconds`; `data`, the data sets and their overlap with dev and
            guard sets; `rejected`, numbers of skipped rows by file; `samples`, rows per step and per epoch, and steps;
            `losses`, log lines (means since the line before); `curves`, scores within the stage; `kept`, the step
            whose weights are saved where the best is chosen; `gap`, see `GapClosed`; `arithmetic`. For the run:
            `stages`; `final`, the last of them; `command`, which started the run; `sets`, kind, split, size, metric
            and sha256 of the dev and guard sets; `base_vectors`, the hash of the untrained encoder that was scored.
        reserved: sorted fingerprints of dev rows that were split off training rows; None if there are none.
        writes: whether this process scores and writes.
        compute_dtypes: dtype of the matrix products of each stage.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        evaluate: Evaluate | None,
        *,
        writes: bool,
        compute_dtypes: Mapping[str, str],
        command: Sequence[str],
    ) -> None:
        self.recipe, self.folder, self.evaluate, self.writes = recipe, folder, evaluate, writes
        self.compute_dtypes = dict(compute_dtypes)
        self.sets = evaluate if isinstance(evaluate, EvaluateSets) else None
        check_metric(recipe, evaluate, None if self.sets is None else self.sets.metrics)
        self.reserved: np.ndarray | None = None
        if recipe.evaluation is not None and recipe.evaluation.reserves:
            texts = getattr(evaluate, "reserved", None)
            if not texts:
                raise ValueError(
                    "evaluation.dev splits rows off training rows; pass evaluate=dev_sets_of(recipe) "
                    "(embrew.evaluation.dev), which names the rows that are not trained on"
                )
            self.reserved = np.unique(fingerprints(texts))
        self.values: dict[str, Any] = {"scores": {}, "seconds": {}, "data": {}, **read_run(folder)}
        self._check_sets()
        self.values["format"] = formats.RUN.number
        self.values["final"] = recipe.stages[-1].name
        self.values["stages"] = [stage.name for stage in recipe.stages]
        if command:
            self.values["command"] = list(map(public_setting, command))

    def _check_sets(self) -> None:
        """Drop the scores of guard sets that have changed since an earlier call.

        Raises:
            ValueError: dev sets have changed, and something was trained.
        """
        hashes, earlier = (
            {name: facts.get("sha256") for name, facts in about.items()}
            for about in ({} if self.sets is None else self.sets.about, self.values.get("sets", {}))
        )
        changed = {name for name in {*hashes, *earlier} if hashes.get(name) != earlier.get(name)}
        if self.sets is None or not earlier or not changed:
            return
        dev = sorted(name for name in changed if not name.startswith(formats.GUARD))
        stages = [stage.name for stage in self.recipe.stages]
        begun = [name for name in stages for end in ("", ".work") if (self.folder / f"{name}{end}").is_dir()]
        if dev and begun:
            raise ValueError(
                f"{self.folder}: evaluation.dev has changed since {begun[0]} was trained ({', '.join(dev)}); its "
                "scores would be of two sets: put the data back, or choose another output folder"
            )
        for scores in self.values["scores"].values():
            for name in (*changed, "guard"):
                scores.pop(name, None)

    def write(self) -> None:
        """Write the file, from the process that writes."""
        if self.writes:
            with atomic_path(self.folder / RUN) as temporary:
                temporary.write_text(json.dumps(sealed(self.values), indent=2), encoding="utf-8")

    def score(self, name: str, encoder: Encoder) -> None:
        """Score the encoder after a stage, or the untrained one (`base`, scored once), and log the scores."""
        if self.evaluate is None or not self.writes:
            return
        scores = self.values["scores"]
        other_sets = self.sets is not None and {*self.sets.about} != {*scores.get(name, ())} - {"dev", "guard"}
        made_of = vectors_hash(encoder) if name == "base" else None
        if name != "base" or name not in scores or other_sets or self.values.get(BASE) != made_of:
            self.values[BASE] = made_of or self.values.get(BASE)
            scores[name] = self._scores(encoder, self.values["stages"][0] if name == "base" else name)
            if self.sets is not None:
                self.values["sets"] = self.sets.about
            self.write()
        if name == "base":
            for title, facts in self.values.get("sets", {}).items():
                kind = "guard" if title.startswith(formats.GUARD) else "dev"
                size = facts.get("size", "size unknown")
                set_name = title.removeprefix(formats.GUARD)
                logger.info("%s set %s: split %s, %s, %s", kind, set_name, facts["split"], size, facts["metric"])
            check_metric(self.recipe, self.evaluate, [score for score in scores[name] if not score.startswith("guard")])
        logger.info("%s  %s", name, scores_line(scores[name], {} if name == "base" else scores.get("base", {})))

    def rejected(self, name: str) -> Path | None:
        """The file in which rows of stage `name` are listed that cannot be trained on; None: another process writes."""
        return self.folder / f"{name}.rejects.jsonl" if self.writes else None

    def add_data(self, stage: StageConfig, parts: list[Dataset], *, per_step: int) -> None:
        """Record the data sets of a stage: name, rows after all filters, and how many hold a dev or guard text.

        Args:
            stage: settings of the stage.
            parts: rows of each of its data sets.
            per_step: number of rows per optimiser step.
        """
        rejects = self.rejected(stage.name)
        if rejects is None:
            return
        self.values.setdefault("arithmetic", {})[stage.name] = self.compute_dtypes[stage.name]
        counts = {"a_step": per_step, "an_epoch": sum(len(part) for part in parts)}
        self.values.setdefault("samples", {}).setdefault(stage.name, {}).update(counts)
        self.values.get("rejected", {}).pop(stage.name, None)  # what an earlier attempt has left
        if rejects.is_file():
            files = [json.loads(line)["file"] for line in rejects.read_text(encoding="utf-8").splitlines()]
            self.values.setdefault("rejected", {})[stage.name] = dict(Counter(Path(file).name for file in files))
        entries = self.values["data"][stage.name] = []
        for config, part in zip(stage.datasets, parts, strict=True):
            names = [public_name(path) for path in config.paths]
            entry: dict[str, Any] = {
                "name": ", ".join(name for name, _ in names),
                "hub": [name for name, on_hub in names if on_hub],
                "config": config.name,
                "split": config.split,
                "revision": config.revision,
                "rows": len(part),
            }
            entry = {key: value for key, value in entry.items() if value is not None}
            if self.sets is not None:
                entry["overlap"] = self.sets.overlap(stage.name, entry["name"], part)
            entries.append(entry)
        self.write()

    def gap_closed(
        self, index: int, objective: Objective, rows: Sequence[DataRow], encoder: Encoder
    ) -> GapClosed | None:
        """Measure the share of the gap closed as stage `index` starts, in the first process; None in the others."""
        config, name = self.recipe.stage_evaluation(index), self.recipe.stages[index].name
        chooses_step = config is not None and config.every is not None and config.metric == formats.GAP
        bfloat16 = self.compute_dtypes.get(name) == "bfloat16"
        return measure_start(name, objective, rows, encoder, self.values, bfloat16=bfloat16, chooses_step=chooses_step)

    def stage_evaluation(self, index: int, encoder: Encoder, gap: GapClosed | None = None) -> StageEvaluation | None:
        """Return how stage `index` is evaluated while it is trained; None if the recipe does not ask for it."""
        config, name = self.recipe.stage_evaluation(index), self.recipe.stages[index].name
        for key in ("curves", "kept"):  # of an earlier attempt
            self.values.get(key, {}).pop(name, None)
        if config is None or self.evaluate is None:
            return None

        def report(curve: list[Point], steps: int) -> None:
            self.values.setdefault("curves", {})[name] = only_sets(curve)
            if gap is not None:
                gap.add_curve(curve)
            self.write()
            now, base = curve[-1], self.values["scores"].get("base", {})
            best = "  best so far" if evaluation.metric is not None and evaluation.best_point(curve) == now else ""
            logger.info("%s  step %d/%d  %s%s", name, now["step"], steps, scores_line(now["scores"], base), best)
            if evaluation.should_stop(curve):
                logger.info(
                    "%s  stopped: %d evaluations without a better %s", name, evaluation.patience, evaluation.metric
                )

        evaluation = StageEvaluation(
            score=lambda: {**self._scores(encoder, name), **({} if gap is None else gap.scores(encoder))},
            report=report,
            metric=None if config.every is None else config.metric,
            patience=config.patience,
            points=config.at,
        )
        return evaluation

    def _scores(self, encoder: Encoder, stage: str) -> dict[str, float]:
        """Return the encoder's scores, computed in the arithmetic of a stage."""
        assert self.evaluate is not None
        bfloat16 = self.compute_dtypes.get(stage) == "bfloat16"
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=bfloat16):
            scores = dict(self.evaluate(encoder))
        if reserved := {formats.GAP, formats.GAP_OTHER} & scores.keys():
            raise ValueError(
                f"evaluate= returns a score {reserved.pop()!r}, a name that the share of the gap closed has"
            )
        return scores

    def add_training(self, name: str, state: TrainerState, seconds: float) -> None:
        """Record a stage's number of optimiser steps, the log lines of its loss, and its time."""
        others = ("step", "epoch", "learning_rate", "grad_norm")
        self.values.setdefault("samples", {}).setdefault(name, {})["steps"] = state.global_step
        self.values.setdefault("losses", {})[name] = [
            {"step": line["step"], **{key: value for key, value in line.items() if key not in others}}
            for line in state.log_history
            if "loss" in line
        ]
        self.values["seconds"][name] = round(seconds, 1)

    def score_trained(
        self,
        name: str,
        encoder: Encoder,
        evaluation: StageEvaluation | None,
        curve: list[Point],
        gap: GapClosed | None,
        steps: int,
    ) -> None:
        """Record and log the scores of a trained encoder.

        Args:
            name: name of its stage.
            encoder: encoder with the weights of its last or best step.
            evaluation: evaluation of the stage while it was trained; None: the encoder is scored now.
            curve: evaluations within the stage, of which the kept step's are the encoder's scores.
            gap: measures the share of the gap closed, of compression stages.
            steps: number of optimiser steps of these weights.
        """
        if evaluation is None:
            self.score(name, encoder)
        else:
            self.values.setdefault("curves", {})[name] = only_sets(curve)
            best = only_sets([evaluation.best_point(curve)])[0]
            scores = self.values["scores"][name] = best["scores"]
            if evaluation.metric is not None:
                self.values.setdefault("kept", {})[name] = best["step"]
                message = "%s  kept step %d, the best of %d evaluations by %s"
                logger.info(message, name, best["step"], len(curve), evaluation.metric)
            logger.info("%s  %s", name, scores_line(scores, self.values["scores"].get("base", {})))
        if gap is not None:
            gap.finish(encoder, steps, [] if evaluation is None else curve)

    def card_facts(self, index: int, before: CardFacts | None) -> CardFacts:
        """Return the facts that the card of stage `index` is written from.

        Args:
            index: index of the last stage that is trained.
            before: facts of the encoder that training started from, if it was trained before.
        """
        stages, log = self.recipe.stages[: index + 1], self.values
        names = [stage.name for stage in stages]
        about = log.get("sets") or ({} if self.sets is None else self.sets.about)
        facts: CardFacts = {
            "stage": names[-1],
            "objectives": {},
            "arithmetic": dict(log.get("arithmetic", {})),
            "recipe": dump_yaml(self.recipe.public().model_dump(mode="json", exclude_defaults=True)),
            "data": {name: log["data"][name] for name in names if name in log["data"]},
            "scores": {name: log["scores"][name] for name in ("base", *names) if name in log["scores"]},
            "curves": {name: curve for name, curve in log.get("curves", {}).items() if name in names},
            "kept": {name: step for name, step in log.get("kept", {}).items() if name in names},
            "about": dict(about),
        }
        for stage in stages:  # presets of one type are different losses
            preset = getattr(build.objective(stage.objective), "preset", None)
            words = "" if preset is None else f", preset {preset}"
            facts["objectives"][stage.name] = stage.objective["type"] + words
        if before is not None:
            facts["before"] = before
        return facts
