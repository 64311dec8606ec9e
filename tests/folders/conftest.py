"""Copies of the folders that earlier versions wrote, as they were."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from embrew.modeling.storage.loading import ASSETS

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Folders:
    """A version's folders in a temporary place, and what that version gave for them."""

    path: Path
    expected: dict[str, Any]
    arrays: dict[str, Any]


def put_back(source: Path, target: Path) -> Folders:
    """Copy a version's folders, with the files that are stored once only."""
    shutil.copytree(source, target)
    for name, original in json.loads((source / "same.json").read_text()).items():
        kind, _, file = original.partition("/")
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile((ASSETS["nano"] if kind == "nano" else source / kind) / file, target / name)
    expected = json.loads((source / "expected.json").read_text())
    return Folders(target, expected, load_file(source / "expected.safetensors"))


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """The folders of b78cf87; the current directory is theirs, since their recipes have relative paths."""
    found = put_back(HERE / "b78cf87", tmp_path / "old")
    monkeypatch.chdir(found.path)
    torch.set_num_threads(1)
    return found


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """The folders of format 2, likewise."""
    found = put_back(HERE / "joined", tmp_path / "joined")
    monkeypatch.chdir(found.path)
    return found
