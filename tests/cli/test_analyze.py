"""`embrew analyze KIND`: the table, the files, and what is refused before a model is opened."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import embrew.opening
from embrew.analysis.surface import surface_of
from embrew.cli import app
from embrew.evaluation import find_task
from tests.conftest import SENTENCES

WORDS = " ".join(SENTENCES).split()


def run(*arguments):
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)], env={"COLUMNS": "180"})


@pytest.fixture
def models(make_encoder, monkeypatch):
    """Three models by name, opened without files; the last has no memory tokens."""
    known = {
        "one": make_encoder(memory_tokens=3),
        "two words": make_encoder(memory_tokens=5, prompts={"document": "doc: "}),
        "plain": make_encoder(memory_tokens=0, pooling="mean"),
    }
    opened = []

    def open_model(name, **_):
        opened.append(name)
        return known.get(name, object())

    monkeypatch.setattr(embrew.opening, "open_model", open_model)
    return known, opened


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Forty texts for the 32 dimensions of the tiny models, scored pairs, question-answer pairs, and documents."""
    monkeypatch.chdir(tmp_path)
    texts = [f"{SENTENCES[i % 5][i:]} {i} {SENTENCES[(i + 2) % 5][: 2 * i]}" for i in range(40)]
    random = np.random.default_rng(0)
    scored = []
    for shared in range(20):  # the score is how many words both have
        left = list(random.choice(WORDS, 20))
        right = [*left[:shared], *random.choice(WORDS, 20 - shared)]
        scored.append({"sentence1": " ".join(left), "sentence2": " ".join(right), "score": shared / 4})
    files = {
        "texts.jsonl": [{"text": text} for text in texts],
        "STS/test.jsonl": scored,
        "pairs.jsonl": [{"question": f"{text[:20]} {i}?", "answer": text} for i, text in enumerate(texts[:10])],
        "suite.yaml": [{"tasks": [{"name": "mine", "data": "STS"}]}],
    }
    for folder in ("STS", "docs"):
        (tmp_path / folder).mkdir()
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for i, text in enumerate(SENTENCES):
        (tmp_path / "docs" / f"{i}.md").write_text(f"# {i}\n\n{text}")
    return tmp_path


def written(folder, kind):
    """The JSON file and the rows of the CSV file; the picture is there."""
    assert (folder / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
    with (folder / f"{kind}.csv").open() as file:
        return json.loads((folder / f"{kind}.json").read_text()), list(csv.DictReader(file))


def test_spectrum(models, data):
    """Lengths are kept: on unit vectors the sum of the singular values could not be above 1."""
    arguments = ["spectrum", "one", "plain", "--data", "texts.jsonl", "-o", "out", "--batch-tokens", 400]
    result = run(*arguments, "--threshold", 0.2)
    assert result.exit_code == 0, result.stderr
    assert models[1] == ["one", "plain"] and "σ > 0.2 σ₁" in result.stdout
    document, rows = written(data / "out", "spectrum")
    assert (document["analysis"], document["threshold"], len(rows)) == ("spectrum", 0.2, 2)
    for line, row, model in zip(result.stdout.splitlines()[1:], rows, document["models"], strict=True):
        values = np.array(model["singular_values"])
        assert len(values) == 32 and values.sum() > 1
        assert model["effective_dimensions"] == (values > 0.2 * values[0]).sum()
        assert line.split()[:4] == [model["model"], "40", "32", str(model["effective_dimensions"])]
        assert float(row["rankme"]) == model["rankme"] and "energy_dimensions.0.9" in row
    assert "encode" not in result.stderr  # no bar without a terminal
    assert "exists; give another folder" in run(*arguments).stderr
    assert run(*arguments, "--overwrite", "--max-texts", 10, "--seed", 1).exit_code == 0
    assert "effective_dimensions" in (data / "out" / "spectrum.json").read_text()


def test_memory(models, data):
    arguments = ["--data", "texts.jsonl", "-o", "out", "--threshold", 0.5, "--max-texts", 12]
    result = run("memory", "one", "two words", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "effective at 0.5" in result.stdout
    document, _ = written(data / "out", "memory")
    assert [(model["k"], model["texts"]) for model in document["models"]] == [(3, 12), (5, 12)]
    for model in document["models"]:
        assert model["k_eff"] == len(model["clusters"]) == len(model["effective_tokens"])
    assert document["models"][0]["model_hash"] != document["models"][1]["model_hash"]
    assert "error: plain: this encoder has no memory tokens" in run("memory", "plain", "--data", "texts.jsonl").stderr


def test_uniformity(models, data):
    result = run("uniformity", "one", "plain", "--data", "STS", "-o", "out")
    assert result.exit_code == 0, result.stderr
    document, rows = written(data / "out", "uniformity")
    assert [(model["positives"], model["texts"]) for model in document["models"]] == [(3, 40)] * 2
    assert [float(row["alignment"]) for row in rows] == [model["alignment"] for model in document["models"]]


def test_sink(models, data):
    arguments = ["--data", "texts.jsonl", "-o", "out", "--prompt-name", "document", "--max-texts", 12]
    result = run("sink", "one", "two words", *arguments)
    assert result.exit_code == 0, result.stderr
    document, rows = written(data / "out", "sink")
    entries = document["models"]
    names = [(name, prompt) for name in ("one", "two words") for prompt in (None, "document")]
    assert [(entry["model"], entry["prompt_name"]) for entry in entries] == names
    assert [float(row["first"]) for row in rows] == [s for entry in entries for s in entry["shares"]["first"]]
    assert all(sum(entry["mean"].values()) == pytest.approx(1) for entry in entries)
    assert entries[0]["shares"] == entries[1]["shares"]  # its prompt is empty
    assert entries[2]["mean"]["prompt"] == 0 < entries[3]["mean"]["prompt"]


def test_surface(models, data):
    arguments = ["--data", "STS", "--dims", "4,16", "--pick", "≥ 50 %", "--split", "test", "-o", "out"]
    result = run("surface", "one", "two words", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "2 layers × 40 texts × 32 dimensions in float32: 0.00 GB are kept in memory" in result.stderr
    document, rows = written(data / "out", "surface")
    for place, model in enumerate(document["models"]):
        surface = surface_of(models[0][model["model"]], [find_task(data / "STS")], dims=[4, 16])
        picked = surface.pick(0.5)
        assert model["scores"] == surface.scores[0].tolist() and model["tasks"][0]["size"] == "20 pairs"
        assert (model["layers"], model["dims"], model["bytes"]) == ([1, 2], [4, 16, 32], [16, 64, 128])
        assert (model["picked"]["layers"], model["picked"]["dim"]) == (picked.layers, picked.dim)
        own = rows[6 * place : 6 * place + 6]
        assert [float(row["STS"]) for row in own] == surface.scores.ravel().tolist()
        assert [row["layers"] for row in own if row["picked"] == "1"] == [str(picked.layers)]
        assert sum(row["pareto"] == "1" for row in own) == len(surface.pareto())
        name = "'two words'" if place else "one"
        assert f"embrew export {name} DIR --layers {picked.layers} --dim {picked.dim}" in result.stdout
    assert "one: scored on STS test, 20 pairs" in result.stdout and "chosen on a test split" in result.stdout


def test_surface_of_a_suite(models, data):
    result = run("surface", "one", "--suite", "suite.yaml", "--data", data, "--dims", "8", "--layers", "1-2", "--json")
    assert result.exit_code == 0, result.stderr
    (model,) = json.loads(result.stdout)["models"]
    assert [task["task"] for task in model["tasks"]] == ["mine"] and model["picked"] is None


def test_truncation(models, data):
    result = run("truncation", "one", "--data", "STS", "--dims", 8, "-o", "out")
    assert result.exit_code == 0, result.stderr
    (model,), _ = written(data / "out", "truncation")[0]["models"], None
    assert (model["dim"], model["texts"]) == (8, 40) and model["distance_share"] > 0


def test_domain(models, data):
    arguments = ["--data", "pairs.jsonl", "--general", "docs", "--max-texts", 8, "-o", "out"]
    result = run("domain", "one", "plain", *arguments)
    assert result.exit_code == 0, result.stderr
    document, rows = written(data / "out", "domain")
    domain, general = document["models"][0]["data"]
    assert domain["separation"]["pairs"] == 8 and domain["perplexity"]["texts"] == 8
    assert general["separation"] is None and general["perplexity"]["texts"] == 5
    assert float(rows[0]["separation.d_prime"]) == domain["separation"]["d_prime"]
    assert "plain: no verdict from 8 pairs of pairs.jsonl: d′ needs 50 or more" in result.stdout
    assert [model["gain"] for model in document["models"]] == [None, None]
    assert document["thresholds"]["min_pairs"] == 50
    assert run("domain", "one", "--data", "texts.jsonl", "-o", "texts").exit_code == 0
    assert not (data / "texts" / "domain.png").exists()  # texts without pairs: perplexity alone


def test_domain_opens_recipes_untrained(data):
    """Of a recipe with stages, the encoder that training would begin with, in float32."""
    result = run("domain", "lbr/medical-nano", "--data", "pairs.jsonl", "--json")
    assert result.exit_code == 0, result.stderr
    (model,) = json.loads(result.stdout)["models"]
    assert model["data"][0]["separation"]["pairs"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["spectrum", "one", "one", "--data", "texts.jsonl"], "one is given twice"),
        (["sink", "one", "--data", "texts.jsonl", "--data", "STS"], "--data is given 2 times"),
        (["spectrum", "one", "--data", "no/such/file.jsonl"], "no file or folder 'no/such/file.jsonl'"),
        (["uniformity", "one", "--data", "texts.jsonl"], "no column for 'sentence1'"),
        (["uniformity", "one", "--data", "STS", "--threshold", "9"], "no pair scores above 9"),
        (["surface", "one"], "nothing to evaluate on; give --data DIR"),
        (["surface", "one", "--data", "STS", "--pick", "98"], 'write "≥ 98 %", or 0.98'),
        (["surface", "one", "--data", "STS", "--pick", "0.9"], "STS has no dev split; it has test"),
        (["surface", "one", "--data", "STS", "--layers", "all"], "'all' is not a list of numbers"),
        (["surface", "one", "--suite", "quick", "--split", "dev"], "--suite defines tasks, splits and kinds"),
        (["truncation", "one", "--data", "STS", "--dims", "4,8"], "takes one number of dimensions"),
        (["domain", "one", "--data", "none"], "no file or folder none"),
        (["domain", "one", "--data", "pairs.jsonl", "--column", "question"], "give OURS=THEIRS"),
        (["domain", "one", "--data", "pairs.jsonl", "--column", "question=frage"], "there is no column 'frage'"),
    ],
)
def test_mistakes_are_told_before_a_model_is_opened(arguments, message, models, data):
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert models[1] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["spectrum", "one"], "Missing option '--data'"),
        (["spectrum", "one", "--data", "texts.jsonl", "--pick", "0.9"], "No such option: --pick"),
        (["histogram", "one"], "No such command 'histogram'"),
    ],
)
def test_a_kind_has_options_of_its_own(arguments, message, models, data):
    result = run(*arguments)
    assert result.exit_code == 2 and message in result.stderr
    assert models[1] == []


def test_what_only_the_model_can_say(models, data):
    assert (
        "error: one: layers: 3; this encoder has 1 to 2" in run("surface", "one", "-d", "STS", "--layers", "3").stderr
    )
    assert "error: other: a object returns its last layer only" in run("surface", "other", "-d", "STS").stderr
    assert "error: one: threshold=1.5; it is a share" in run("spectrum", "one", "-d", "STS", "--threshold", 1.5).stderr
