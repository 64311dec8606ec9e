"""`stage.json`: the settings and inputs that a stage was trained with, compared with the current ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from embrew.data.reading import data_identity, files_digest
from embrew.encoder import Encoder
from embrew.files import formats
from embrew.files.checksums import NAME as CHECKSUMS
from embrew.files.checksums import file_sha256, sealed
from embrew.files.names import LOCAL_PREFIX, base_name
from embrew.files.reading import content_of, read_json
from embrew.files.writing import write_json
from embrew.identity import vectors_hash
from embrew.recipe import DevRows, Recipe, build
from embrew.storage.base_model import adapter_of, known_name, local_model, weights_sha256
from embrew.storage.foreign import file_of
from embrew.storage.loading import SETTINGS
from embrew.storage.parts import TENSORS, check_folder

logger = logging.getLogger(__name__)
STAGE = formats.STAGE.file
MODEL = "encoder.model"
MODEL_FILES = (
    "*.model",
    "*.py",
    "*.safetensors",
    "*.tiktoken",
    "added_tokens.json",
    "config.json",
    "merges.txt",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer*",
    "vocab*",
)
Identity = Mapping[str, str | None]
sha256_of = partial(file_sha256, cached=True)  # large files are read once in a process
PROCESSES = "processes"  # number of processes that the stage was begun in; only while it is in progress
BF16 = re.compile(r"stages\.\d+\.training\.bf16")
REMEDY = "choose another output folder, or remove this stage and those after it"


class StageSettings:
    """Settings and inputs that a recipe's stages depend on, compared with those of existing folders.

    Args:
        recipe: recipe of the run.
        folder: folder of the run.
        start: folder of the encoder that training starts from, if not the recipe's language model.
    """

    def __init__(self, recipe: Recipe, folder: Path, start: Path | None = None) -> None:
        self.recipe, self.folder, self.start = recipe, folder, start

    def of_stage(self, index: int) -> dict[str, Any]:
        """Return the settings and inputs that stage `index` depends on, without paths of this machine."""
        return {
            "format": formats.STAGE.number,
            "hash": self.recipe.stage_hash(index),
            "recipe": self.recipe.public().resolved(index),
            "content": self.inputs(index),
            "arithmetic": self.compute_dtypes(index),
            **self.started_with,
        }

    def compute_dtypes(self, index: int) -> dict[str, str]:
        """Return the dtype of the matrix products of stage `index` and those before it.

        A stage that was begun in the run's folder keeps its dtype.

        Raises:
            ValueError: it was begun in bfloat16 by default, which this device only emulates.
        """
        dtypes: dict[str, str] = {}
        for stage in self.recipe.stages[: index + 1]:
            work = self.folder / f"{stage.name}.work"
            current, written = build.compute_dtype(self.recipe, stage), read_stage(work)
            is_set = written is None or stage.training.get("bf16") is not None
            begun_in = current if is_set or written is None else written["arithmetic"][stage.name]
            if (begun_in, current) == ("bfloat16", "float32") and not is_set:
                raise ValueError(
                    f"{work}: the stage was begun in bfloat16, which this device only emulates; resume it on a device "
                    f"that computes in bfloat16, or remove {work}, and the stage is trained from its start in float32"
                )
            dtypes[stage.name] = begun_in
        return dtypes

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
            raise ValueError(f"{folder} was trained with other settings ({', '.join(keys)}); {REMEDY}")
        inputs = self.inputs(index)
        for key in changed_inputs(inputs, written["content"]):
            what = "language model" if key == MODEL else "data set"
            raise ValueError(
                f"{folder}: the {what} {inputs[key]['name']!r} ({key}): its files have changed since the stage was "
                f"trained; put them back, {REMEDY}"
            )
        if any(written.get(name) != self.started_with.get(name) for name in ("start", "start_vectors")):
            raise ValueError(
                f"{folder} was not trained from {self.start or 'the language model of the recipe'}; {REMEDY}"
            )
        return True

    def begin(self, work: Path, index: int, settings: Mapping[str, Any], *, processes: int) -> None:
        """Write `stage.json` of stage `index` unless it is in progress.

        Args:
            work: folder of the stage in progress.
            index: index of the stage.
            settings: return value of `of_stage`.
            processes: number of processes that train now.

        Raises:
            ValueError: it is in progress with other settings, or in another number of processes.
        """
        if not self.holds(work, index):
            write_json(work / STAGE, sealed({**settings, PROCESSES: processes}))
            return
        with content_of(work / STAGE):
            begun = int((read_stage(work) or {})[PROCESSES])
        if begun != processes:
            raise ValueError(
                f"{work}: the stage was begun in {begun} processes, and is resumed in {processes}; resume it in "
                f"{begun}, or remove {work}, and the stage is trained from its start"
            )

    def differing_keys(self, written: Mapping[str, Any], index: int) -> list[str] | None:
        """Return the keys in which a stage's settings differ, apart from the content of files; None: in none.

        Stages that differ in `training.bf16` only are compared by the `arithmetic` that resulted from it.
        """
        if written["hash"] == self.recipe.stage_hash(index):
            return None
        keys = self.recipe.differing_keys(written["recipe"], index)
        return None if keys and all(BF16.fullmatch(key) for key in keys) else keys

    def inputs(self, index: int) -> dict[str, Identity]:
        """Return names and sha256 of the data sets and the model of stage `index`, by key: see `data_identity`."""
        inputs: dict[str, Identity] = {MODEL: self._model()}
        for i, stage in enumerate(self.recipe.stages[: index + 1]):
            for position, config in stage.placed_datasets:
                for n, path in enumerate(config.paths):
                    key = f"stages.{i}.{position}.path" + ("" if isinstance(config.path, str) else f".{n}")
                    inputs[key] = data_identity(path, split=config.split, revision=config.revision, sha256=sha256_of)
        deciding = self.recipe.resolved(index)
        if self.recipe.evaluation is not None and ("evaluation" in deciding or "dev_rows" in deciding):
            for n, dev_set in enumerate(self.recipe.evaluation.dev):
                if "evaluation" in deciding or isinstance(dev_set, DevRows):
                    path = dev_set if isinstance(dev_set, str) else dev_set.path
                    inputs[f"evaluation.dev.{n}"] = data_identity(path, split=None, revision=None, sha256=sha256_of)
        return inputs

    def _model(self) -> Identity:
        """The sha256 of a folder's weights, configuration and tokenizer; the commit of a Hub model."""
        model, revision = self.recipe.encoder.model, self.recipe.encoder.revision
        name = known_name(model)
        identity: dict[str, str | None] = {"name": base_name(name)}
        adapter = self.recipe.encoder.adapter or (model if adapter_of(model) is not None else None)
        if adapter is not None and (path := file_of(adapter, TENSORS)) is not None:
            identity["adapter"] = sha256_of(Path(path))
        folder = local_model(name)
        if folder is not None and folder.is_file():
            return {**identity, "sha256": weights_sha256(folder)}
        if folder is not None:
            files = sorted({file for pattern in MODEL_FILES for file in folder.glob(pattern) if file.is_file()})
            return {**identity, "sha256": files_digest(folder, files, sha256_of)}
        if name.startswith(LOCAL_PREFIX):
            return identity
        try:
            cached = try_to_load_from_cache(name, "config.json", revision=revision)
        except ValueError:  # no Hub id
            return identity
        return {**identity, "hub": name, "revision": Path(cached).parent.name if isinstance(cached, str) else revision}


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
    in_progress = not (folder / CHECKSUMS).is_file()
    keys = ("hash", "recipe", "arithmetic", "content")
    written = read_json(path, keys=keys, kind=formats.STAGE, repair=repair, sealed=in_progress)
    with content_of(path, repair=repair):
        if not isinstance(written["hash"], str) or not isinstance(written["recipe"], dict):
            raise TypeError("hash is not a string, or recipe not an object")
        if not isinstance(written.get(PROCESSES, 1), int) or written.get(PROCESSES, 1) < 1:
            raise TypeError(f"{PROCESSES} is not a number of processes")
        if not isinstance(written["arithmetic"], dict):
            raise TypeError("arithmetic is not an object")
        if not all(isinstance(identity, dict) for identity in dict(written["content"]).values()):
            raise TypeError("content is not an object of objects")
    return written


def changed_inputs(ours: Mapping[str, Identity], theirs: Mapping[str, Identity]) -> list[str]:
    """Return the keys of data sets or models that differ from `theirs`, the inputs of an earlier training.

    A value that is unknown on one side, such as the sha256 of missing files, is not compared. Files of a folder and a
    repository of the Hub differ: whether they hold the same is not known.
    """
    return [key for key in ours if key in theirs and _differ(ours[key], theirs[key])]


def _differ(ours: Identity, theirs: Identity) -> bool:
    if any("hub" in a and b.get("sha256") is not None and "hub" not in b for a, b in ((ours, theirs), (theirs, ours))):
        return True
    keys = [key for key in ("sha256", "hub", "revision") if ours.get(key) is not None and theirs.get(key) is not None]
    return any(ours[key] != theirs[key] for key in keys)
