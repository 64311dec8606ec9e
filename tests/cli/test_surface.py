import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import embrew.opening
from embrew.analysis.surface_scores import surface_of
from embrew.cli import app
from embrew.evaluation import find_task
from tests.conftest import SENTENCES

WORDS = " ".join(SENTENCES).split()


def run(*arguments):
    return CliRunner().invoke(app, ["analyze", "surface", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def models(make_encoder, monkeypatch):
    known = {"one": make_encoder(), "two words": make_encoder("qwen2", memory_tokens=0, pooling="mean")}
    opened = []

    def open_model(name):
        opened.append(name)
        return known[name] if name in known else object()

    monkeypatch.setattr(embrew.opening, "open_model", open_model)
    return known, opened


@pytest.fixture
def sts(tmp_path):
    """Twenty pairs; the score is how many words both have, so that any encoder finds something."""
    folder, random = tmp_path / "STS", np.random.default_rng(0)
    folder.mkdir()
    rows = []
    for shared in range(20):
        left = list(random.choice(WORDS, 20))
        right = [*left[:shared], *random.choice(WORDS, 20 - shared)]
        rows.append({"sentence1": " ".join(left), "sentence2": " ".join(right), "score": shared / 4})
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_everything_it_writes(models, sts, tmp_path):
    known, opened = models
    files = {name: tmp_path / name for name in ("s.png", "t.png", "s.csv", "s.json")}
    arguments = ["one", "two words", "--data", sts, "--dims", "4,16", "--pick", "≥ 50 %", "--tsne-dim", 8]
    arguments += [
        "--split",
        "test",
        "--plot",
        files["s.png"],
        "--tsne",
        files["t.png"],
        "--csv",
        files["s.csv"],
        "-o",
        files["s.json"],
    ]
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    assert opened == ["one", "two words"]
    assert "2 layers × 40 texts × 32 dimensions in float32: 0.0 MB are kept in memory" in result.stderr
    assert all(files[name].read_bytes().startswith(b"\x89PNG") for name in ("s.png", "t.png"))
    written = json.loads(files["s.json"].read_text())
    rows = list(csv.DictReader(files["s.csv"].open()))
    assert (written["analysis"], len(rows)) == ("surface", 12)
    for place, model in enumerate(written["models"]):
        found = surface_of(known[model["model"]], [find_task(sts)], dims=[4, 16])
        assert model["scores"] == found.scores[0].tolist()
        assert (model["layers"], model["dims"], model["bytes"]) == ([1, 2], [4, 16, 32], [16, 64, 128])
        assert model["shallow_average"] == {str(dim): found.shallow_average(dim) for dim in (4, 16, 32)}
        assert (model["tsne"]["dim"], model["tsne"]["texts"], model["share"]) == (8, 40, 0.5)
        picked = found.pick(0.5)
        assert (model["picked"]["layers"], model["picked"]["dim"]) == (picked.layers, picked.dim)
        own = rows[6 * place : 6 * place + 6]
        assert [(row["layers"], row["dim"]) for row in own] == [(str(c.layers), str(c.dim)) for c in found.cells]
        assert [float(row["STS"]) for row in own] == pytest.approx(found.scores.ravel(), abs=1e-6)
        assert [row["model"] for row in own if row["picked"] == "1"] == [model["model"]]
        assert sum(row["pareto"] == "1" for row in own) == len(found.pareto())
        name = "'two words'" if place else "one"
        assert f"embrew export {name} DIR --layers {picked.layers} --dim {picked.dim}" in result.stdout
        assert "scored on STS test, 20 pairs" in result.stdout and "chosen on a test split" in result.stdout
        assert model["tasks"][0]["size"] == "20 pairs"
        assert f"≺Avg {100 * found.shallow_average():.2f} at 32 dimensions" in result.stdout
    assert "encode" not in result.stderr  # no bar without a terminal


def test_a_suite_s_tasks(models, sts, tmp_path):
    suite = tmp_path / "own.yaml"
    suite.write_text("tasks:\n  - {name: mine, data: STS}\n")
    output = tmp_path / "out.json"
    result = run("one", "--suite", suite, "--data", tmp_path, "--dims", "8", "--layers", "1-2", "-o", output)
    assert result.exit_code == 0, result.stderr
    (model,) = json.loads(output.read_text())["models"]
    assert [task["task"] for task in model["tasks"]] == ["mine"]
    assert model["picked"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "nothing to evaluate on; give --data DIR"),
        (["one", "--data", "STS", "--pick", "98"], 'write "≥ 98 %", or 0.98'),
        (["one", "--data", "STS", "--pick", "0.9"], "STS has no dev split; it has test"),
        (["one", "--data", "STS", "--layers", "all"], "'all' is not a list of numbers"),
        (["one", "--data", "STS", "--plot", "x.jpg"], "choose from .png, .pdf, .svg"),
        (["one", "--data", "STS", "--csv", "STS"], "--overwrite to replace it"),
        (["one", "--data", "no/such/folder"], "no data folder"),
        (["one", "--suite", "quick", "--split", "dev"], "--suite defines tasks and splits"),
    ],
)
def test_mistakes_are_told_before_a_model_is_opened(arguments, message, models, sts):
    result = run(*(sts if argument == "STS" else argument for argument in arguments))
    assert result.exit_code == 1
    assert message in result.stderr
    assert models[1] == []


def test_what_only_the_model_can_say(models, sts):
    assert "error: one: layers: 3; this encoder has 1 to 2" in run("one", "--data", sts, "--layers", "3").stderr
    assert "error: other: a object returns its last layer only" in run("other", "--data", sts).stderr
