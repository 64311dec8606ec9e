"""Sweeps: rows that are checked first, stages that are trained once, results in one table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.recipe import Recipe
from embrew.settings.yaml_files import dump_yaml
from embrew.sweep import read_sweep
from embrew.sweep import run_sweep as verified
from embrew.sweep.rows import Sweep
from embrew.training import stages
from embrew.training.run import Run
from tests.conftest import SENTENCES, by_default

RATE = "stages.second.training.learning_rate"
run_sweep = partial(verified, verify="off")


@pytest.fixture(scope="module")
def recipe(model_folder, tmp_path_factory) -> Path:
    """Two contrastive stages on a tiny model, and an STS file to judge them on."""
    tmp_path = tmp_path_factory.mktemp("recipe")
    texts = [f"{a} {b} Part {i}." for i, a in enumerate(SENTENCES) for b in SENTENCES]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pairs = [{"sentence1": t[:40], "sentence2": t[40:80], "score": float(i)} for i, t in enumerate(texts[::3])]
    (tmp_path / "similar.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    stage = {
        "objective": {"type": "contrastive", "positives": "dropout"},
        "data": {"path": str(tmp_path / "texts.jsonl")},
        "batch": {"size": 4},
        "training": {"max_steps": 2, "learning_rate": 0.01, "use_cpu": True},
    }
    values = {
        "encoder": {
            "model": str(model_folder("llama")),
            "pooling": {"mode": "mean"},
            "max_length": {"query": 64, "document": 64},
            "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"]},
        },
        "stages": [{"name": "first", **stage}, {"name": "second", **stage}],
        "evaluation": {"dev": [str(tmp_path / "similar.jsonl")]},
    }
    (tmp_path / "recipe.yaml").write_text(dump_yaml(values))
    return tmp_path / "recipe.yaml"


@pytest.fixture
def write(tmp_path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        (tmp_path / "sweep.yaml").write_text(text)
        return tmp_path / "sweep.yaml"

    return written


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The stages that were really trained, in order, as ROW/STAGE."""
    return counted(monkeypatch)


def counted(patch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    original = stages.train_stage

    def train_stage(run: Run, index: int, announce: Any) -> Any:
        found.append(f"{run.folders[index].parent.name}/{run.recipe.stages[index].name}")
        return original(run, index, announce)

    patch.setattr(stages, "train_stage", train_stage)
    return found


ROWS = f"""
- {{name: low, set: [{RATE}=0.001]}}
- {{name: rate=0.2, set: [{RATE}=0.2]}}
"""


@pytest.fixture(scope="module")
def swept(recipe, tmp_path_factory) -> tuple[Path, Sweep, list[str]]:
    """The folder of a sweep, its rows, and the stages that were trained."""
    place = tmp_path_factory.mktemp("swept")
    (place / "sweep.yaml").write_text(ROWS)
    sweep = read_sweep(place / "sweep.yaml", recipe)
    with pytest.MonkeyPatch.context() as patch:
        trained = counted(patch)
        run_sweep(sweep, place / "out")
    return place / "out", sweep, trained


def test_rows_share_their_first_stage(recipe, swept, tmp_path):
    """The first stage is trained once; the taken-over copy is what an own training gives, to the bit."""
    out, sweep, trained = swept
    assert sweep.axis == RATE and [row.x for row in sweep.rows] == [0.001, 0.2]
    assert trained == ["low/first", "low/second", "rate=0.2/second"]
    record = json.loads((out / "sweep.json").read_text())
    assert [row["name"] for row in record["rows"]] == ["low", "rate=0.2"]
    scores = [row["scores"]["similar"] for row in record["rows"]]
    assert len({score for (score,) in scores}) == 2, "the rate matters"
    table = (out / "sweep.md").read_text()
    for row, (score,) in zip(("low", "rate=0.2"), scores, strict=True):
        assert f"| {row} | {100 * score:.2f} |" in table
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    log = json.loads((out / "rate=0.2" / "run.json").read_text())
    assert set(log["seconds"]) == {"first", "second"} and log["final"] == "second"
    own = stages.train(Recipe.load(recipe, [f"{RATE}=0.2"]), tmp_path / "alone", verify="off")
    assert own.weights_hash() == Encoder.from_pretrained(out / "rate=0.2").weights_hash()


@pytest.mark.parametrize("lost", by_default(["rate=0.2"], ["rate=0.2", "rate=0.2/second"]))
def test_a_stopped_sweep_goes_on(lost, swept, trained, tmp_path):
    """A row that is there is not trained again, the others are."""
    whole, sweep, _ = swept
    out = shutil.copytree(whole, tmp_path / "out")
    shutil.rmtree(out / lost)
    with pytest.raises(FileExistsError, match="--resume"):
        run_sweep(sweep, out)
    run_sweep(sweep, out, resume=True)
    assert trained == ["rate=0.2/second"]
    again, before = (json.loads((place / "sweep.json").read_text()) for place in (out, whole))
    assert again["rows"] == before["rows"]
    run_sweep(sweep, out, resume=True)
    assert trained == ["rate=0.2/second"], "nothing is left to do"


def test_a_row_that_changed_is_refused(recipe, swept, write, tmp_path):
    out = shutil.copytree(swept[0], tmp_path / "out")
    other = read_sweep(write(f"- {{name: low, set: [{RATE}=0.5]}}"), recipe)
    with pytest.raises(ValueError, match="second was trained with other settings .*learning_rate"):
        run_sweep(other, out, resume=True)


def test_seeds_and_stages(recipe, write, trained, tmp_path):
    """Each seed is a run of its own; the table shows their mean and standard deviation."""
    import statistics

    sweep = read_sweep(write("{stages: [first], rows: [{name: a, seeds: [1, 2]}]}"), recipe)
    run_sweep(sweep, tmp_path / "out")
    assert trained == ["seed-1/first", "seed-2/first"]
    (row,) = json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"]
    scores = row["scores"]["similar"]
    assert row["seeds"] == [1, 2] and row["stages"] == ["first"] and scores[0] != scores[1]
    said = f"| a | {100 * statistics.fmean(scores):.2f} ± {100 * statistics.stdev(scores):.2f} |"
    assert said in (tmp_path / "out" / "sweep.md").read_text()
    assert not (tmp_path / "out" / "sweep.png").exists()


@pytest.mark.slow
def test_from_a_trained_encoder(recipe, write, trained, tmp_path):
    """`--from` holds for every row; their stages are not those of the language model, and are not taken over."""
    stages.train(Recipe.load(recipe), tmp_path / "before")
    trained.clear()
    sweep = read_sweep(write(ROWS), recipe)
    run_sweep(sweep, tmp_path / "out", start=tmp_path / "before")
    assert len(trained) == 4
    run_sweep(sweep, tmp_path / "other", resume=True)
    assert trained[4:] == ["low/first", "low/second", "rate=0.2/second"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "sweep.yaml is empty"),
        ("3", "a sweep is a list of rows"),
        ("[]", "rows"),
        ("- {set: []}", "sweep.yaml:1: rows.0.name is missing; it is required"),
        (
            "- {name: a}\n- {name: b, sets: []}",
            "sweep.yaml:2: unknown key rows.1.sets; valid keys: set, stages, seeds",
        ),
        ("- {name: a/b}", "'a/b' names a folder"),
        ("- {name: sweep.json}", "names a folder"),
        ("- {name: a}\n- {name: A, set: [seed=3]}", "sweep.yaml:2: row A: two rows have this name"),
        ("- {name: a}\n- {name: b, set: [seed=42]}", "row b has the same settings as row a"),
        ("- {name: a, set: [encoder.modelx=x]}", "sweep.yaml:1: row a: override 'encoder.modelx=x': unknown key"),
        ("- {name: a, set: [stages.third.batch.size=3]}", "has no item 'third'"),
        ("- {name: a, set: [stages.first.training.max_step=3]}", "did you mean 'max_steps'?"),
        ("- {name: a, set: [stages.first.objective.temperaturex=3]}", "did you mean 'temperature'?"),
        ("- {name: a, stages: [third]}", "stages names 'third'; the recipe has first, second"),
        ("- {name: a, seeds: [1, 1]}", "name each seed once"),
        ("- {name: a, seeds: []}", "seeds"),
        ("- {name: a, set: [evaluation=null]}", "row a has no evaluation"),
        ("- {name: a, x: 1}\n- {name: b, set: [seed=1]}", "1 of 2 rows have x, row b has none"),
        ("{rows: [{name: a}], suites: quick}", "unknown key suites"),
    ],
)
def test_wrong_rows_are_told_before_anything_is_trained(text, message, recipe, write, trained, tmp_path):
    result = CliRunner().invoke(app, ["train", str(recipe), "--sweep", str(write(text)), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert message in result.stderr, result.stderr
    assert not trained and not (tmp_path / "out").exists()


def test_a_missing_dev_set_is_told_before_anything_is_trained(recipe, write, trained, tmp_path):
    sweep = read_sweep(write("- {name: a, set: ['evaluation.dev=[no/such]']}"), recipe)
    with pytest.raises(FileNotFoundError, match="no data folder no/such"):
        run_sweep(sweep, tmp_path / "out")
    assert not trained


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("- {name: a, set: [seed=1]}\n- {name: b, set: [seed=2]}", "seed"),
        ("- {name: a}\n- {name: b, set: [seed=2]}", "seed"),  # the first has the recipe's own
        ("- {name: a, set: [encoder.pooling.mode=last]}\n- {name: b}", None),  # no number
        ("- {name: a, set: [seed=1, stages.first.batch.size=5]}\n- {name: b}", None),  # two of them
        ("- {name: a, set: [encoder.normalize=false]}\n- {name: b}", None),
        ("{x: size, rows: [{name: a, x: 1.5, set: [seed=1]}, {name: b, x: 2}]}", "size"),
    ],
)
def test_what_varies(text, axis, recipe, write):
    sweep = read_sweep(write(text), recipe)
    assert sweep.axis == axis
    assert all((row.x is None) == (axis is None) for row in sweep.rows)


def test_command_line(recipe, write, tmp_path, forked):
    """Each saved stage is verified, unless one says otherwise."""
    sweep = str(write("{stages: [first], rows: [{name: only}]}"))
    arguments = ["train", str(recipe), "stages.first.batch.size=5", "--sweep", sweep]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.stderr
    assert "| only |" in result.stdout
    (row,) = json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"]
    assert row["recipe"]["stages"][0]["batch"]["size"] == 5
    again = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "out")])
    assert again.exit_code == 1 and "--resume" in again.stderr
