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

from embrew import assembly
from embrew.config.yaml_files import dump_yaml
from embrew.data import overlap
from embrew.data.reading import public_name
from embrew.encoder import Encoder
from embrew.files import formats
from embrew.files.names import public_setting
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_path
from embrew.methods import Objective
from embrew.recipe import DataConfig, Recipe, StageConfig
from embrew.training.gap_closed import GapClosed, at_start
from embrew.training.monitoring import loss_lines
from embrew.training.stage_evaluation import (
    DevSets,
    Evaluate,
    Point,
    StageEvaluation,
    check_metric,
    of_sets,
    scores_line,
    set_lines,
    without_gap,
)

if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)
RUN = formats.RUN.file
LOST = "remove it and run again with --resume: scores and times of finished stages are lost, their models are not"


def read_run(folder: Path) -> dict[str, Any]:
    """Return the content of a run's `run.json`, or `{}` if there is none.

    Raises:
        BrokenFile: the file is damaged.
        OtherFormat: it has another format number.
    """
    path = folder / RUN
    if not path.is_file():
        return {}
    values = read_json(path, kind=formats.RUN, repair=LOST)
    with content_of(path, repair=LOST):
        for key in ("scores", "seconds", "data"):
            if not isinstance(values.get(key, {}), dict):
                raise TypeError(f"{key} is not an object")
    return values


class RunResults:
    """Scores and data of a run, kept in `folder/run.json`.

    Attributes:
        values: the content of the file. `scores` and `seconds` by stage; `data`: the data sets of each stage, and
            their overlap with the dev and guard sets; for stages that are evaluated while they are trained, `curves`
            and, if the best step is chosen, `kept`, the step whose weights are saved; `stages`, and `final`, the last
            of them; `command`, which started the run.
            `rejected`: rows of each file that cannot be read and are skipped, by stage.
            `samples`: rows per step and per epoch of each stage, and its steps.
            `losses`: the log lines of each stage: step, loss and its parts, means since the line before.
            `sets`: kind, split, size and metric of the dev and guard sets.
            `gap`: of compression stages, the share of the gap closed, see `gap_closed`.
        reserved: sorted fingerprints of dev rows that were split off training rows; None if there are none.
        writes: whether this process scores and writes.
        arithmetic: dtype of the matrix products of each stage.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        evaluate: Evaluate | None,
        *,
        writes: bool,
        arithmetic: Mapping[str, str],
    ) -> None:
        self.recipe, self.folder, self.evaluate, self.writes = recipe, folder, evaluate, writes
        self.arithmetic = dict(arithmetic)
        self.sets = evaluate if isinstance(evaluate, DevSets) else None
        check_metric(recipe, evaluate, None if self.sets is None else self.sets.metrics)
        self.reserved = self._reserved()
        self.values: dict[str, Any] = {"scores": {}, "seconds": {}, "data": {}}
        if (folder / RUN).exists():
            self.values |= read_run(folder)
        self.values["format"] = formats.RUN.number
        self.values["final"] = recipe.stages[-1].name
        self.values["stages"] = [stage.name for stage in recipe.stages]

    @property
    def base(self) -> Mapping[str, float]:
        """Scores of the encoder that training started from."""
        scores: Mapping[str, float] = self.values["scores"].get("base", {})
        return scores

    def add_command(self, command: Sequence[str]) -> None:
        """Note the command that began the run, its paths by name; nothing if there is none."""
        if command:
            self.values["command"] = list(map(public_setting, command))

    def write(self) -> None:
        """Write the file, from the process that writes."""
        if not self.writes:
            return
        with atomic_path(self.folder / RUN) as temporary:
            temporary.write_text(json.dumps(self.values, indent=2), encoding="utf-8")

    def score(self, name: str, encoder: Encoder) -> None:
        """Score the encoder after a stage, or the untrained one (`base`, scored once), and log the scores."""
        if self.evaluate is None or not self.writes:
            return
        scores = self.values["scores"]
        other_sets = self.sets is not None and {*self.sets.about} != {*scores.get(name, ())} - {"dev", "guard"}
        if name != "base" or name not in scores or other_sets:
            scores[name] = self._scores(encoder, self.values["stages"][0] if name == "base" else name)
            if self.sets is not None:
                self.values["sets"] = self.sets.about
            self.write()
        if name == "base":
            for line in set_lines(self.values.get("sets", {})):
                logger.info("%s", line)
            check_metric(self.recipe, self.evaluate, [score for score in scores[name] if not score.startswith("guard")])
        self._log_scores(name, scores[name])

    def rejected(self, name: str) -> Path | None:
        """The file in which rows of stage `name` are listed that cannot be trained on; None: another process writes."""
        return self.folder / f"{name}.rejects.jsonl" if self.writes else None

    def add_data(self, stage: StageConfig, parts: list[Dataset], *, per_step: int) -> None:
        """Record the data sets of a stage, and how many of their rows hold a text of the dev and guard sets.

        Args:
            stage: names the data sets.
            parts: their rows.
            per_step: rows per optimiser step.
        """
        if not self.writes:
            return
        self.values.setdefault("arithmetic", {})[stage.name] = self.arithmetic[stage.name]
        counts = {"a_step": per_step, "an_epoch": sum(len(part) for part in parts)}
        self.values.setdefault("samples", {}).setdefault(stage.name, {}).update(counts)
        self._count_rejected(stage.name)
        evaluated_texts = None if self.sets is None else overlap.known_texts(self.sets.texts())
        entries = self.values["data"][stage.name] = []
        for config, part in zip(stage.datasets, parts, strict=True):
            entry = dataset_facts(config, part)
            if evaluated_texts is not None:
                entry["overlap"] = overlap.overlap(part, evaluated_texts)
                for line in overlap.in_words(entry["name"], len(part), entry["overlap"]):
                    logger.info("%s  overlap: %s", stage.name, line)
            entries.append(entry)
        self.write()

    def _count_rejected(self, name: str) -> None:
        """Note how many rows of each file are left out."""
        path = self.rejected(name)
        self.values.get("rejected", {}).pop(name, None)  # what an earlier attempt has left
        if path is not None and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            counts = Counter(Path(json.loads(line)["file"]).name for line in lines)
            self.values.setdefault("rejected", {})[name] = dict(counts)

    def gap_closed(
        self, index: int, objective: Objective, rows: Sequence[dict[str, Any]], encoder: Encoder
    ) -> GapClosed | None:
        """Measure the share of the gap closed as stage `index` starts, in the first process; None in the others."""
        config, name = self.recipe.stage_evaluation(index), self.recipe.stages[index].name
        chooses = config is not None and config.every is not None and config.metric == formats.GAP
        bfloat16 = self.arithmetic.get(name) == "bfloat16"
        return at_start(name, objective, rows, encoder, self.values, bfloat16=bfloat16, chooses=chooses)

    def stage_evaluation(self, index: int, encoder: Encoder, gap: GapClosed | None = None) -> StageEvaluation | None:
        """Return how stage `index` is evaluated while it is trained; None if the recipe does not ask for it."""
        config, name = self.recipe.stage_evaluation(index), self.recipe.stages[index].name
        for key in ("curves", "kept"):  # of an earlier attempt
            self.values.get(key, {}).pop(name, None)
        if config is None or self.evaluate is None:
            return None

        def report(curve: list[Point], steps: int) -> None:
            self.values.setdefault("curves", {})[name] = of_sets(curve)
            if gap is not None:
                gap.add_curve(curve)
            self.write()
            now = curve[-1]
            best = "  best so far" if evaluation.metric is not None and evaluation.best_point(curve) == now else ""
            logger.info("%s  step %d/%d  %s%s", name, now["step"], steps, scores_line(now["scores"], self.base), best)
            if evaluation.should_stop(curve):
                logger.info(
                    "%s  stopped: %d evaluations without a better %s", name, evaluation.patience, evaluation.metric
                )

        evaluation = StageEvaluation(
            score=lambda: {**self._scores(encoder, name), **({} if gap is None else gap.scores(encoder))},
            report=report,
            metric=None if config.every is None else config.metric,
            patience=config.patience,
            at=config.at,
        )
        return evaluation

    def _scores(self, encoder: Encoder, stage: str) -> dict[str, float]:
        """Return the encoder's scores, computed in the arithmetic of a stage."""
        assert self.evaluate is not None
        bfloat16 = self.arithmetic.get(stage) == "bfloat16"
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=bfloat16):
            scores = dict(self.evaluate(encoder))
        if reserved := {formats.GAP, formats.GAP_OTHER} & scores.keys():
            raise ValueError(
                f"evaluate= returns a score {reserved.pop()!r}, a name that the share of the gap closed has"
            )
        return scores

    def add_training(self, name: str, state: TrainerState, seconds: float) -> None:
        """Record a stage's number of optimiser steps, the log lines of its loss, and its time."""
        self.values.setdefault("samples", {}).setdefault(name, {})["steps"] = state.global_step
        self.values.setdefault("losses", {})[name] = loss_lines(state.log_history)
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
            name: of its stage.
            encoder: with the weights of its last or best step.
            evaluation: how the stage was evaluated while it was trained; None: the encoder is scored now.
            curve: evaluations within the stage.
            gap: measures the share of the gap closed, of compression stages.
            steps: number of optimiser steps of these weights.
        """
        if evaluation is None:
            self.score(name, encoder)
        else:
            self._add_curve(name, evaluation, curve)
        if gap is not None:
            gap.finish(encoder, steps, [] if evaluation is None else curve)

    def _add_curve(self, name: str, evaluation: StageEvaluation, curve: list[Point]) -> None:
        """Record the learning curve of a finished stage; its scores are those of the kept step."""
        best = evaluation.best_point(curve)
        self.values.setdefault("curves", {})[name] = of_sets(curve)
        self.values["scores"][name] = without_gap(best["scores"])
        if evaluation.metric is not None:
            self.values.setdefault("kept", {})[name] = best["step"]
            logger.info(
                "%s  kept step %d, the best of %d evaluations by %s", name, best["step"], len(curve), evaluation.metric
            )
        self._log_scores(name, without_gap(best["scores"]))

    def facts_for_card(self, index: int, before: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the facts that the card of stage `index` is written from; `before` as in `card_facts`."""
        return card_facts(
            self.recipe,
            index,
            self.values,
            self.values.get("sets") or (None if self.sets is None else self.sets.about),
            before,
        )

    def _log_scores(self, name: str, scores: Mapping[str, float]) -> None:
        logger.info("%s  %s", name, scores_line(scores, {} if name == "base" else self.base))

    def _reserved(self) -> np.ndarray | None:
        """Fingerprints of the dev rows that are split off training rows.

        Raises:
            ValueError: the recipe splits dev rows off, but `evaluate` does not name their texts.
        """
        if self.recipe.evaluation is None or not self.recipe.evaluation.reserves:
            return None
        texts = getattr(self.evaluate, "reserved", None)
        if not texts:
            raise ValueError(
                "evaluation.dev splits rows off training rows; pass evaluate=dev_sets_of(recipe) "
                "(embrew.evaluation.dev), which names the rows that are not trained on"
            )
        return np.unique(overlap.fingerprints(texts))


def dataset_facts(config: DataConfig, rows: Dataset) -> dict[str, Any]:
    """Describe a data set that was trained on: name, split, revision, and number of rows after all filters."""
    paths = [config.path] if isinstance(config.path, str) else config.path
    names = [public_name(path) for path in paths]
    facts: dict[str, Any] = {
        "name": ", ".join(name for name, _ in names),
        "hub": [name for name, on_hub in names if on_hub],
        "config": config.name,
        "split": config.split,
        "revision": config.revision,
        "rows": len(rows),
    }
    return {key: value for key, value in facts.items() if value is not None}


def card_facts(
    recipe: Recipe,
    index: int,
    log: Mapping[str, Any],
    about: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the facts that the card of stage `index` is written from.

    Args:
        recipe: all stages.
        index: the last one trained.
        log: `run.json`: scores, data and curves of all stages so far.
        about: kind, split and metric of the dev and guard sets.
        before: the facts of the encoder that training started from, if it was trained before.
    """
    names = [stage.name for stage in recipe.stages[: index + 1]]
    record: dict[str, Any] = {
        "stage": names[-1],
        "objectives": {stage.name: _named(stage.objective) for stage in recipe.stages[: index + 1]},
        "arithmetic": dict(log.get("arithmetic", {})),
        "recipe": dump_yaml(recipe.public().model_dump(mode="json", exclude_defaults=True)),
        "data": {name: log["data"][name] for name in names if name in log["data"]},
        "scores": {name: log["scores"][name] for name in ("base", *names) if name in log["scores"]},
        "curves": {name: curve for name, curve in log.get("curves", {}).items() if name in names},
        "kept": {name: step for name, step in log.get("kept", {}).items() if name in names},
        "about": dict(about or {}),
    }
    if before is not None:
        record["before"] = dict(before)
    return record


def _named(objective: Mapping[str, Any]) -> str:
    """An objective's type, with its preset if it has presets: they are different losses."""
    preset = getattr(assembly.objective(objective), "preset", None)
    return objective["type"] + ("" if preset is None else f", preset {preset}")
