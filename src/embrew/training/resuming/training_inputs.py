"""The inputs of training: data sets and language model, by name and content, independent of their folders."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from embrew.data.reading import data_identity, files_digest
from embrew.files.checksums import LARGE, digest_of, file_sha256
from embrew.files.names import LOCAL_PREFIX, base_name
from embrew.files.writing import write_json
from embrew.recipe import DevRows, Recipe
from embrew.storage.loading import ASSETS

logger = logging.getLogger(__name__)
HASHES = "content.json"
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
Identity = Mapping[str, Any]


class TrainingInputs:
    """Names and sha256 of a recipe's data sets and language model.

    The sha256 of files of 16 MiB or more are kept in `content.json`, by size and times and without paths, so that a
    resumed run does not read a large corpus again to hash it.

    Args:
        recipe: names the inputs.
        folder: of the run.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.path = recipe, folder / HASHES

    def of_stage(self, index: int) -> dict[str, Identity]:
        """Return the inputs that stage `index` depends on, by the recipe's key: see `data_identity`."""
        found: dict[str, Identity] = {MODEL: self._model()}
        for i, stage in enumerate(self.recipe.stages[: index + 1]):
            several = isinstance(stage.data, list)
            for number, config in enumerate(stage.datasets):
                key = f"stages.{i}.data.{number}.path" if several else f"stages.{i}.data.path"
                paths = [config.path] if isinstance(config.path, str) else config.path
                for n, path in enumerate(paths):
                    name = key if isinstance(config.path, str) else f"{key}.{n}"
                    found[name] = self._data(path, config.split, config.revision)
        deciding = self.recipe.resolved(index)
        if self.recipe.evaluation is not None and ("evaluation" in deciding or "dev_rows" in deciding):
            for n, one in enumerate(self.recipe.evaluation.dev):
                if "evaluation" in deciding or isinstance(one, DevRows):
                    found[f"evaluation.dev.{n}"] = self._data(one if isinstance(one, str) else one.path, None, None)
        return found

    def _data(self, path: str, split: str | None, revision: str | None) -> Identity:
        return data_identity(path, split=split, revision=revision, sha256=self._sha256)

    def _model(self) -> Identity:
        """The sha256 of a folder's weights, configuration and tokenizer; the commit of a Hub model."""
        name, revision = self.recipe.encoder.model, self.recipe.encoder.revision
        found: dict[str, Any] = {"name": base_name(name)}
        folder = ASSETS.get(name) or Path(name)
        if folder.is_dir():
            files = sorted({file for pattern in MODEL_FILES for file in folder.glob(pattern) if file.is_file()})
            return {**found, "sha256": files_digest(folder, files, self._sha256)}
        if name.startswith(LOCAL_PREFIX):
            return found
        try:
            cached = try_to_load_from_cache(name, "config.json", revision=revision)
        except ValueError:  # no Hub id
            return found
        return {**found, "hub": name, "revision": Path(cached).parent.name if isinstance(cached, str) else revision}

    def _sha256(self, file: Path) -> str:
        about = file.stat()
        if about.st_size < LARGE:
            return file_sha256(file)
        times = [about.st_mtime_ns, about.st_ctime_ns]
        key = digest_of([os.path.realpath(file), about.st_ino, about.st_size, *times])
        if key not in self._noted:
            began = time.perf_counter()
            self._noted[key] = file_sha256(file, cached=True)
            seconds = time.perf_counter() - began
            if seconds > 1:
                logger.info("%s: sha256 of %.1f GB took %.1f s", file.name, about.st_size / 1e9, seconds)
            write_json(self.path, {"files": self._noted})
        return self._noted[key]

    @cached_property
    def _noted(self) -> dict[str, str]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))["files"]
            return {str(key): str(value) for key, value in found.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # it is computed again
            return {}


def changed_inputs(ours: Mapping[str, Identity], theirs: Mapping[str, Identity]) -> list[str]:
    """Return the keys of data sets or models that differ from `theirs`, the inputs of an earlier training.

    A value that is unknown on one side, such as the sha256 of missing files, is not compared. Files of a folder and a
    repository of the Hub differ: whether they hold the same is not known.
    """
    return [key for key in ours if key in theirs and _differ(ours[key], theirs[key])]


def _differ(one: Identity, other: Identity) -> bool:
    if any("hub" in a and b.get("sha256") is not None and "hub" not in b for a, b in ((one, other), (other, one))):
        return True
    both = [name for name in ("sha256", "hub", "revision") if one.get(name) is not None and other.get(name) is not None]
    return any(one[name] != other[name] for name in both)
