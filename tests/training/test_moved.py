"""Saved folders hold no path of the machine, and a run resumes wherever its data are, if they are the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from embrew.cli import app
from embrew.recipe import Recipe
from embrew.settings.yaml_files import dump_yaml
from embrew.training.trainer import StageTrainer
from tests.adapting.test_prepare import docs, write
from tests.training.test_stages import equal, values
from tests.training.unverified import train

__all__ = ["docs", "values", "write"]  # fixtures


def paths_in(folder: Path, *roots: Path) -> list[str]:
    """Files below a folder that hold a path of this machine, whatever they are."""
    wanted = [str(root).encode() for root in (*roots, Path.home(), Path.cwd())]
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert files
    return [str(path.relative_to(folder)) for path in files if any(name in path.read_bytes() for name in wanted)]


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let training end with Ctrl-C in a step; returns what lets it train again."""
    whole, seen = StageTrainer.training_step, {"steps": 0}

    def training_step(self: StageTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen["steps"] += 1
        if seen["steps"] == step:
            raise KeyboardInterrupt
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(StageTrainer, "training_step", training_step)
    return lambda: monkeypatch.setattr(StageTrainer, "training_step", whole)


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> dict[str, Path]:
    """Where the run of `stopped` is, and one that nothing stopped, once they are made."""
    return {name: tmp_path_factory.mktemp("once") / name for name in ("stopped", "whole")}


@pytest.fixture
def stopped(once, values, tmp_path, monkeypatch) -> dict[str, Any]:
    """Values of a run in `out` whose first stage is finished and whose second was stopped; the model is a copy."""
    model = values["encoder"]["model"]
    shutil.copytree(model, tmp_path / "model")
    values["encoder"] |= {"model": str(tmp_path / "model"), "dtype": "float32"}
    values["stages"] = [values["stages"][0], {**values["stages"][2], "adapter": "continue"}]
    if not once["stopped"].exists():
        train(Recipe.from_values(values), once["whole"], verify="off")
        go_on = stop_at(7, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            train(Recipe.from_values(values), once["stopped"], verify="off")
        go_on()
        shutil.rmtree(tmp_path / "model")  # its weights are linked to what all tests share
        shutil.copytree(model, tmp_path / "model")
    shutil.copytree(once["stopped"], tmp_path / "out")
    return values


def moved(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same recipe, its data and model moved to another folder."""
    folder.mkdir()
    for stage in values["stages"]:
        path = Path(stage["data"]["path"])
        if path.exists():
            shutil.move(path, folder)
        stage["data"] = {"path": str(folder / path.name)}
    shutil.move(values["encoder"]["model"], folder)
    values["encoder"]["model"] = str(folder / Path(values["encoder"]["model"]).name)
    return values


def test_moved_data_are_resumed(stopped, once, tmp_path):
    """Finished stages are skipped, the stopped one resumes to the same weights, and no folder holds a path."""
    recipe = Recipe.from_values(moved(stopped, tmp_path / "elsewhere"))
    before = (tmp_path / "out" / "compress" / "embrew.json").stat().st_mtime_ns
    train(recipe, tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "compress" / "embrew.json").stat().st_mtime_ns == before, "skipped"
    equal(once["whole"], tmp_path / "out")
    assert paths_in(tmp_path / "out", tmp_path) == []
    saved = Recipe.load(tmp_path / "out" / "supervised" / "recipe.yaml")
    assert saved.encoder.model == "local:model" and saved.stages[0].datasets[0].path == "local:texts.jsonl"
    assert saved.stages[0].training == recipe.stages[0].training


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("texts.jsonl", r"compress: the data set 'texts.jsonl' \(stages.0.data.path\): its files have changed since"),
        ("pairs.jsonl", r"supervised.work: the data set 'pairs.jsonl' \(stages.1.data.path\): its files have changed"),
        ("model/model.safetensors", r"the language model 'model' \(encoder.model\): its files have changed since"),
        ("model/tokenizer.json", r"the language model 'model' \(encoder.model\): its files have changed since"),
    ],
)
def test_changed_files_are_refused(file, words, stopped, tmp_path):
    """Also where size and time are the same."""
    path = tmp_path / file
    about, data = path.stat(), bytearray(path.read_bytes())
    data[data.index(b"0") if b"0" in data else -2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(ValueError, match=words):
        train(Recipe.from_values(stopped), tmp_path / "out", resume=True)


def test_the_saved_recipe_elsewhere(stopped, tmp_path):
    """Finished stages need no data; for the others it says which path is to be given."""
    saved = tmp_path / "out" / "compress" / "recipe.yaml"
    moved(stopped, tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"encoder.model: 'local:model' was saved by name, .*encoder.model="):
        train(Recipe.load(saved), tmp_path / "new")
    model = f"encoder.model={tmp_path / 'elsewhere' / 'model'}"
    result = CliRunner().invoke(app, ["train", str(saved), "-o", str(tmp_path / "new"), model])
    assert result.exit_code == 1 and result.stderr == (
        "error: stages.compress.data.path: 'local:texts.jsonl' was saved by name, without its folder; set "
        "stages.compress.data.path=FOLDER/texts.jsonl\n"
    )
    assert not (tmp_path / "new").exists()
    data = [f"stages.{name}.data.path={tmp_path / 'elsewhere' / file}" for name, file in ANSWERS]
    resumed = train(Recipe.load(saved, [model, *data]), tmp_path / "out", resume=True)
    shutil.rmtree(tmp_path / "elsewhere")
    assert train(Recipe.load(saved, [model, *data]), tmp_path / "out", resume=True).steps == resumed.steps == 8


ANSWERS = (("compress", "texts.jsonl"), ("supervised", "pairs.jsonl"))


def test_broken_json(stopped, tmp_path):
    """It is named, and what to do."""
    recipe, out = Recipe.from_values(stopped), tmp_path / "out"
    (out / "compress" / "checksums.json").unlink()  # or it would be noticed by that
    for file, words in (
        ("compress/stage.json", r"compress/stage.json cannot be read: .*; remove .*compress and run again with"),
        ("supervised.work/stage.json", r"stage.json cannot be read: .*; remove .*supervised.work and run again with"),
        ("run.json", r"run.json cannot be read: .*remove it and run again with --resume: scores"),
    ):
        whole = (out / file).read_text()
        number = json.loads(whole)["format"]
        odd = json.dumps({"format": number, "hash": 1, "recipe": {}, "arithmetic": {}, "content": {}, "scores": 1})
        for damaged in (whole[:-20], odd):
            (out / file).write_text(damaged)
            with pytest.raises(ValueError, match=words):
                train(recipe, out, resume=True)
        (out / file).write_text(whole)


@pytest.fixture
def written_ways(values, tmp_path, monkeypatch) -> dict[str, Any]:
    """Data by a variable, below the home folder, relative to here, and relative to the recipe."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MY_DATA", str(tmp_path / "data"))
    (tmp_path / "recipes" / "sets").mkdir(parents=True)
    for name in ("home", "data", "here"):
        (tmp_path / name).mkdir()
    rows = (tmp_path / "pairs.jsonl").read_text()
    for place in ("home/h.jsonl", "data/d.jsonl", "here/r.jsonl", "recipes/sets/s.jsonl"):
        (tmp_path / place).write_text(rows)
    monkeypatch.chdir(tmp_path / "here")
    paths = ["$MY_DATA/d.jsonl", "~/h.jsonl", "r.jsonl", "sets/s.jsonl", str(tmp_path / "pairs.jsonl")]
    values["stages"] = [{**values["stages"][2], "data": {"path": paths}}]
    values["stages"][0]["training"] = {**values["stages"][0]["training"], "max_steps": 1}
    (tmp_path / "recipes" / "recipe.yaml").write_text(dump_yaml(values))
    return values


def test_paths_as_written(written_ways, tmp_path):
    recipe = Recipe.load("../recipes/recipe.yaml")
    train(recipe, "out")
    assert paths_in(tmp_path / "here" / "out", tmp_path) == []
    saved = Recipe.load("out/supervised/recipe.yaml")
    assert saved.stages[0].datasets[0].path == [
        "$MY_DATA/d.jsonl",
        "local:h.jsonl",
        "r.jsonl",
        "sets/s.jsonl",
        "local:pairs.jsonl",
    ]
    elsewhere = Recipe.load(tmp_path / "recipes" / "recipe.yaml")
    assert elsewhere.public() == recipe.public(), "however the recipe's file is named"
    assert train(recipe, "out", resume=True).steps == 1, "finished"
