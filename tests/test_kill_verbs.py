"""Killed without warning at random moments: what was finished is there, and the next run succeeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from embrew.modeling.encoder import Encoder
from embrew.modeling.pooling import Pooling
from tests.conftest import SENTENCES, stir
from tests.killing import content, loop, measured, partial, run

KILLS = 16
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two encoders with memory tokens and an adapter; they differ in the adapter."""
    folders = []
    for seed in (2, 3):
        template = "{instruction}{text}{memory}"
        encoder = Encoder.from_pretrained(
            model_folder("llama"),
            memory_tokens=3,
            template=template,
            pooling=Pooling("mean", "memory"),
            attention="causal",
        )
        encoder.max_length.update(query=128, document=128)
        encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
        stir(encoder.backbone, seed=seed)
        encoder.steps = 1
        folders.append(tmp_path_factory.mktemp("trained") / f"encoder-{seed}")
        encoder.save_pretrained(folders[-1], verify="fast")
    return folders[0], folders[1]


def pairs(path: Path) -> Path:
    rows = [{"query": f"{text[:20]} {i}?", "positive": f"{i}: {text}"} for i in range(40) for text in SENTENCES]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def killed_while_it_replaces(
    name: str, command: Callable[[Path, Path], list[object]], sources: tuple[Path, Path], place: Path
) -> None:
    """Kill a verb that writes one file or folder: first where there is none yet, then over an earlier one."""
    out = place / "out"
    target = out / "target"
    out.mkdir(parents=True)
    undisturbed = []
    for number, source in enumerate(sources):
        whole, writes_from = measured(
            command(source, place / "undisturbed" / str(number)), place / "undisturbed", place=place
        )
        undisturbed.append(content(place / "undisturbed" / str(number)))
    old, new = undisturbed
    assert old != new

    def named(found: dict[str, str]) -> str:
        return {json.dumps(old): "the old one", json.dumps(new): "the new one"}[json.dumps(found)]

    def first() -> str:
        return named(content(target)) if target.exists() else "nothing"

    def remove() -> None:
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    def renew() -> None:
        remove()
        (shutil.copytree if (place / "undisturbed" / "0").is_dir() else shutil.copy)(
            place / "undisturbed" / "0", target
        )

    moments = {"place": place, "whole": whole, "writes_from": writes_from}
    again = [*command(sources[1], target), "--overwrite"]
    found = loop(f"{name}, into nothing", again, out, first, kills=KILLS // 4, seed=0, again=remove, **moments)
    assert found.kills == KILLS // 4
    run(again, place=place)
    assert content(target) == new
    renew()
    found = loop(
        f"{name} --overwrite", again, out, lambda: named(content(target)), kills=KILLS, seed=1, again=renew, **moments
    )
    assert found.kills == KILLS and found.writing >= 3
    run(again, place=place)
    assert content(target) == new
    assert sorted(path.name for path in out.iterdir()) == ["target"], "leftovers are gone"
    assert not partial(place)


def test_merge(trained: tuple[Path, Path], tmp_path: Path) -> None:
    killed_while_it_replaces("merge", lambda source, out: ["merge", source, out], trained, tmp_path)


def test_export(trained: tuple[Path, Path], tmp_path: Path) -> None:
    killed_while_it_replaces("export", lambda source, out: ["export", source, out], trained, tmp_path)


def test_data_mine(trained: tuple[Path, Path], tmp_path: Path) -> None:
    given = pairs(tmp_path / "pairs.jsonl")
    killed_while_it_replaces("data mine", lambda source, out: ["data", "mine", source, given, out], trained, tmp_path)
