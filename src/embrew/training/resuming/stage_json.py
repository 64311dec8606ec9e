"""`stage.json`: the settings and inputs that a stage was trained with, compared with the current ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from embrew import assembly
from embrew.encoder import Encoder
from embrew.files import formats
from embrew.files.reading import content_of, read_json
from embrew.files.writing import write_json
from embrew.recipe import Recipe, StageConfig
from embrew.storage.opening import SETTINGS
from embrew.storage.parts import check_folder
from embrew.text_encoder.hashes import vectors_hash
from embrew.training.resuming.training_inputs import MODEL, TrainingInputs, changed_inputs

STAGE = formats.STAGE.file
PROCESSES = "processes"  # number of processes that the stage was begun in; only while it is in progress
HELD_OUT = "held_out"  # number of texts that it sets aside; only while it is in progress
BF16 = re.compile(r"stages\.\d+\.training\.bf16")
OR = "choose another output folder, or remove this stage and those after it"


class StageSettings:
    """Settings and inputs that a recipe's stages depend on, compared with those of existing folders.

    Args:
        recipe: of the run.
        folder: of the run.
        start: folder of the encoder that training starts from, if not the recipe's language model.
    """

    def __init__(self, recipe: Recipe, folder: Path, start: Path | None = None) -> None:
        self.recipe, self.folder, self.start = recipe, folder, start
        self.inputs = TrainingInputs(recipe, folder)

    def of_stage(self, index: int) -> dict[str, Any]:
        """Return the settings and inputs that stage `index` depends on, without paths of this machine."""
        return {
            "format": formats.STAGE.number,
            "hash": self.recipe.stage_hash(index),
            "recipe": self.recipe.public().resolved(index),
            "content": self.inputs.of_stage(index),
            "arithmetic": self.arithmetic(index),
            **self.started_with,
        }

    def arithmetic(self, index: int) -> dict[str, str]:
        """Return the dtype of the matrix products of stage `index` and those before it."""
        return {stage.name: arithmetic_of(self.recipe, stage, self.folder) for stage in self.recipe.stages[: index + 1]}

    @cached_property
    def started_with(self) -> dict[str, str]:
        """Hashes of the encoder that training starts from; empty if it is the recipe's language model."""
        if self.start is None:
            return {}
        encoder = Encoder.from_pretrained(
            self.start,
            device="cpu",
            merge_adapter=False,
            trust_remote_code=self.recipe.encoder.trust_remote_code,
        )
        return {"start": encoder.weights_hash(), "start_vectors": vectors_hash(encoder)}

    def holds(self, folder: Path, index: int) -> bool:
        """Return whether a folder holds stage `index`, finished or in progress, with these settings.

        Raises:
            ValueError: it holds the stage with other settings or inputs; names them.
        """
        written = read_stage(folder)
        if (folder / SETTINGS).is_file():
            check_folder(folder, large=False)
        if written is None:
            return False
        keys = self.differing_keys(written, index)
        if keys is not None:
            raise ValueError(f"{folder} was trained with other settings ({', '.join(keys)}); {OR}")
        inputs = self.inputs.of_stage(index)
        for key in changed_inputs(inputs, written["content"]):
            what = "language model" if key == MODEL else "data set"
            raise ValueError(
                f"{folder}: the {what} {inputs[key]['name']!r} ({key}): its files have changed since the stage was "
                f"trained; put them back, {OR}"
            )
        if any(written.get(name) != self.started_with.get(name) for name in ("start", "start_vectors")):
            raise ValueError(f"{folder} was not trained from {self.start or 'the language model of the recipe'}; {OR}")
        return True

    def begin(
        self, work: Path, index: int, started: Mapping[str, Any], *, processes: int, held_out: int
    ) -> tuple[int, int]:
        """Write `stage.json` of stage `index` unless it is in progress; return `processes` and `held_out` as begun.

        Args:
            work: folder of the stage in progress.
            index: of the stage.
            started: what `of_stage` returned.
            processes: number of processes that train now.
            held_out: number of texts to set aside.
        """
        if self.holds(work, index):
            begun = read_stage(work) or {}
            with content_of(work / STAGE):
                return int(begun[PROCESSES]), int(begun[HELD_OUT])
        write_json(work / STAGE, {**started, PROCESSES: processes, HELD_OUT: held_out})
        return processes, held_out

    def could_reuse(self, folder: Path, index: int) -> bool:
        """Return whether a folder holds stage `index` with these settings, trained from the recipe's language model."""
        written = read_stage(folder)
        if written is None or "start" in written or self.differing_keys(written, index) is not None:
            return False
        if written["arithmetic"] != self.arithmetic(index):
            return False
        return not changed_inputs(self.inputs.of_stage(index), written["content"])

    def differing_keys(self, written: Mapping[str, Any], index: int) -> list[str] | None:
        """Return the keys in which a stage's settings differ, apart from the content of files; None: in none.

        Stages that differ in `training.bf16` only are compared by the `arithmetic` that resulted from it.
        """
        if written["hash"] == self.recipe.stage_hash(index):
            return None
        keys = self.recipe.differing_keys(written["recipe"], index)
        return None if keys and all(BF16.fullmatch(key) for key in keys) else keys


def arithmetic_of(recipe: Recipe, stage: StageConfig, folder: Path) -> str:
    """Return the dtype of a stage's matrix products: that in which it was begun in a run's folder, if it was.

    Raises:
        ValueError: it was begun in bfloat16 by default, which this device only emulates.
    """
    work = folder / f"{stage.name}.work"
    now, written = assembly.arithmetic(recipe, stage), read_stage(work)
    if written is None or stage.training.get("bf16") is not None:
        return now
    begun: str = written["arithmetic"][stage.name]
    if begun == "bfloat16" and now == "float32":
        raise ValueError(
            f"{work}: the stage was begun in bfloat16, which this device only emulates; resume it on a device that "
            f"computes in bfloat16, or remove {work}, and the stage is trained from its start in float32"
        )
    return begun


def read_stage(folder: Path) -> dict[str, Any] | None:
    """Return the content of a folder's `stage.json`; None if there is none.

    Raises:
        BrokenFile: the file is damaged.
        OtherFormat: it has another format number.
    """
    path = folder / STAGE
    if not path.is_file():
        return None
    repair = f"remove {folder} and run again with --resume: the stage is trained again"
    written = read_json(path, keys=("hash", "recipe", "arithmetic", "content"), kind=formats.STAGE, repair=repair)
    with content_of(path, repair=repair):
        if not isinstance(written["hash"], str) or not isinstance(written["recipe"], dict):
            raise TypeError("hash is not a string, or recipe not an object")
        if not isinstance(written.get(PROCESSES, 1), int) or written.get(PROCESSES, 1) < 1:
            raise TypeError(f"{PROCESSES} is not a number of processes")
        if not isinstance(written.get(HELD_OUT, 0), int) or written.get(HELD_OUT, 0) < 0:
            raise TypeError(f"{HELD_OUT} is not a number of texts")
        if not isinstance(written["arithmetic"], dict):
            raise TypeError("arithmetic is not an object")
        if not all(isinstance(one, dict) for one in dict(written["content"]).values()):
            raise TypeError("content is not an object of objects")
    return written
