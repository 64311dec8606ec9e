"""After any failed write or rename, finished parts are kept, and the run resumes to the same weights."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from embrew.encoder import Encoder
from embrew.files import writing
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.training.test_stages import equal, values

__all__ = ["values"]  # the fixture


class FullDisk:
    """Raises "no space left on device" at the n-th write or rename below a folder; counts them all."""

    def __init__(self, folder: Path, fail_at: int | None) -> None:
        self.folder, self.fail_at, self.count = str(folder), fail_at, 0

    def tick(self, path: Any) -> None:
        if str(path).startswith(self.folder):
            self.count += 1
            if self.count == self.fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        replace, rename, opened = os.replace, os.rename, builtins.open
        save_file, save = safetensors.torch.save_file, torch.save

        def watched(function: Callable[..., Any], position: int) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self.tick(args[position])
                return function(*args, **kwargs)

            return call

        def watched_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+"):
                self.tick(file)
            return opened(file, mode, *args, **kwargs)

        patch.setattr(os, "replace", watched(replace, 1))
        patch.setattr(os, "rename", watched(rename, 1))
        patch.setattr(writing, "exchange", watched(writing.exchange, 1))
        patch.setattr(builtins, "open", watched_open)
        patch.setattr(Path, "open", lambda path, mode="r", *args, **kwargs: watched_open(path, mode, *args, **kwargs))
        patch.setattr(safetensors.torch, "save_file", watched(save_file, 1))
        patch.setattr(torch, "save", watched(save, 1))


@pytest.fixture
def recipe(values) -> Recipe:
    values["stages"] = values["stages"][:2]
    return Recipe.from_values(values)


def fail(recipe: Recipe, output: Path, at: int | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """Train with a disk that is full at one moment; how many writes there were."""
    disk = FullDisk(output, at)
    with monkeypatch.context() as patch:
        disk.install(patch)
        if at is None:
            train(recipe, output)
        else:
            with pytest.raises(OSError, match="No space left"):
                train(recipe, output)
    return disk.count


def goes_on(recipe: Recipe, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / f"failed-{at}"
    fail(recipe, output, at, monkeypatch)
    for stage in recipe.stages:
        if (output / stage.name / "embrew.json").exists():  # whatever has its final name can be opened
            Encoder.from_pretrained(output / stage.name).encode(SENTENCES)
    train(recipe, output, resume=output.exists())
    equal(output, tmp_path / "whole")


def test_a_write_fails(recipe, tmp_path, monkeypatch):
    count = fail(recipe, tmp_path / "whole", None, monkeypatch)
    assert count > 20
    goes_on(recipe, tmp_path, count * 3 // 4, monkeypatch)  # in the second stage


@pytest.mark.slow
def test_every_write_fails_once(recipe, tmp_path, monkeypatch):
    count = fail(recipe, tmp_path / "whole", None, monkeypatch)
    for at in range(1, count + 1):
        goes_on(recipe, tmp_path, at, monkeypatch)
