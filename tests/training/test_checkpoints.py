"""Which checkpoints count: those whose manifest lists what is needed, and nothing outside the folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from transformers import TrainingArguments

from embrew.training import checkpoints
from embrew.training.checkpoints import files_needed

FILES = ("trainable.safetensors", "trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth")
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of no bytes


def sealed(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in FILES:
        (checkpoint / name).write_text(f"{name} {step}")
    checkpoints.seal(checkpoint)
    return checkpoint


@pytest.fixture
def needed(tmp_path: Path) -> tuple[str, ...]:
    return files_needed(TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none"))


def without(name: str, manifest: str) -> str:
    return json.dumps({key: value for key, value in json.loads(manifest).items() if key != name})


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda manifest, text=text: text, id=text)
        for text in ("", "{}", "[]", "null", '"x"', "1", "{", "\x00", '{"trainable.safetensors": 1}', "[" * 100_000)
    ]
    + [pytest.param(lambda manifest, name=name: without(name, manifest), id=f"no {name}") for name in FILES]
    + [
        pytest.param(lambda manifest, name=name: json.dumps({**json.loads(manifest), name: EMPTY}), id=f"{name!r} too")
        for name in ("../outside", "/dev/null", "missing", "", "..")
    ],
)
def test_what_is_not_whole_is_passed_over(
    damage: object, needed: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, and the older one is used."""
    older, newer = sealed(tmp_path / "work", 9), sealed(tmp_path / "work", 10)
    (tmp_path / "work" / "outside").touch()
    assert checkpoints.newest(tmp_path / "work", needed) == newer
    manifest = newer / "manifest.json"
    manifest.write_text(damage(manifest.read_text()))  # type: ignore[operator]
    caplog.set_level(logging.WARNING, logger="embrew")
    assert checkpoints.newest(tmp_path / "work", needed) == older
    assert "checkpoint-10 is incomplete" in caplog.text and "checkpoint-9 " not in caplog.text
