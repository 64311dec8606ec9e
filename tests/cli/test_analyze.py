import json

import numpy as np
import pytest
from typer.testing import CliRunner

import embrew.opening
from embrew.cli import app
from tests.conftest import SENTENCES


def run(*arguments):
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def models(make_encoder, monkeypatch):
    """Two models by name, opened without files, and one without memory tokens."""
    known = {
        "one": make_encoder(memory_tokens=3),
        "two": make_encoder(memory_tokens=5, prompts={"document": "doc: "}),
        "plain": make_encoder(memory_tokens=0, pooling="mean"),
    }
    opened = []

    def open_model(name):
        opened.append(name)
        return known[name]

    monkeypatch.setattr(embrew.opening, "open_model", open_model)
    return opened


@pytest.fixture
def texts(tmp_path):
    """Forty texts for the 32 dimensions of the tiny models."""
    path = tmp_path / "texts.jsonl"
    rows = [{"text": f"{SENTENCES[i % 5][i:]} {i} {SENTENCES[(i + 2) % 5][: 2 * i]}"} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sts(tmp_path):
    path = tmp_path / "STS"
    path.mkdir()
    rows = [{"sentence1": SENTENCES[i], "sentence2": SENTENCES[i + 1], "score": 2.0 + i} for i in range(4)]
    (path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_spectrum(models, texts, tmp_path):
    output, plot = tmp_path / "out.json", tmp_path / "out.png"
    result = run("spectrum", "one", "plain", "--data", texts, "--plot", plot, "-o", output, "--batch-tokens", 400)
    assert result.exit_code == 0, result.stderr
    assert models == ["one", "plain"]
    assert "σ > 0.01 σ₁" in result.stdout
    written = json.loads(output.read_text())
    assert (written["analysis"], [model["model"] for model in written["models"]]) == ("spectrum", ["one", "plain"])
    lines = result.stdout.splitlines()
    for line, model in zip(lines[1:], written["models"], strict=True):
        cells = line.split()
        assert cells[:4] == [model["model"], "40", "32", str(model["effective_dimensions"])]
        values = np.array(model["singular_values"])
        assert len(values) == 32
        assert model["effective_dimensions"] == (values > 0.01 * values[0]).sum()
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "encode" not in result.stderr  # no bar without a terminal


def test_vectors_are_raw_and_the_threshold_is_said(models, texts, tmp_path):
    """Lengths are kept: on unit vectors the sum of the singular values could not be above 1."""
    output = tmp_path / "out.json"
    result = run("spectrum", "one", "--data", texts, "--threshold", 0.2, "-o", output)
    assert "σ > 0.2 σ₁" in result.stdout
    (model,) = json.loads(output.read_text())["models"]
    assert model["threshold"] == 0.2
    assert sum(model["singular_values"]) > 1


def test_few_texts_are_warned_of(models, texts):
    result = run("spectrum", "one", "--data", texts, "--max-texts", 10)
    assert result.exit_code == 0
    assert "warning: 10 texts for 32 dimensions" in result.stderr


def test_memory(models, texts, tmp_path):
    output, plot = tmp_path / "out.json", tmp_path / "out.png"
    options = ["--merge-above", "0.5", "--pick", "medoid", "--max-texts", 12]
    result = run("memory", "one", "two", "--data", texts, "--plot", plot, "-o", output, *options)
    assert result.exit_code == 0, result.stderr
    assert "effective at 0.5" in result.stdout
    written = json.loads(output.read_text())
    assert [(model["k"], model["texts"]) for model in written["models"]] == [(3, 12), (5, 12)]
    for line, model in zip(result.stdout.splitlines()[1:], written["models"], strict=True):
        assert line.split()[:4] == [model["model"], "12", str(model["k"]), str(model["k_eff"])]
        assert model["k_eff"] == len(model["clusters"]) == len(model["effective_tokens"])
        assert (model["pick"], model["seed"]) == ("medoid", None)
    assert written["models"][0]["model_hash"] != written["models"][1]["model_hash"]
    assert plot.is_file()


def test_an_encoder_without_memory_tokens_is_refused(models, texts):
    result = run("memory", "plain", "--data", texts)
    assert result.exit_code == 1
    loading, error = result.stderr.splitlines()
    assert loading == "loading plain"
    assert error.startswith("error: plain: this encoder has no memory tokens; train one")


def test_uniformity(models, sts, tmp_path):
    output, plot = tmp_path / "out.json", tmp_path / "out.png"
    result = run("uniformity", "one", "two", "--data", sts, "--plot", plot, "-o", output, "--above", 3.5)
    assert result.exit_code == 0, result.stderr
    written = json.loads(output.read_text())
    assert (written["above"], written["alpha"], written["t"]) == (3.5, 2, 2)
    for line, model in zip(result.stdout.splitlines()[1:], written["models"], strict=True):
        assert (model["positives"], model["texts"]) == (2, 5)
        assert line.split() == [model["model"], f"{model['alignment']:.4f}", f"{model['uniformity']:.4f}", "2", "5"]
        assert model["alignment"] > 0 > model["uniformity"]
    assert plot.is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["spectrum", "one", "one", "--data", "TEXTS"], "one is given twice"),
        (["spectrum", "one", "--data", "TEXTS", "--plot", "x.jpg"], "choose from .png, .pdf, .svg"),
        (["spectrum", "one", "--data", "TEXTS", "-o", "TEXTS"], "--overwrite to replace it"),
        (["spectrum", "one", "--data", "TEXTS", "--threshold", "1.5"], "threshold=1.5; it is a share"),
        (["spectrum", "one", "--data", "no/such/file.jsonl"], "no file or folder 'no/such/file.jsonl'"),
        (["uniformity", "one", "--data", "TEXTS"], "no column for 'sentence1'"),
        (["uniformity", "one", "--data", "STS", "--above", "9"], "no pair scores above 9; the highest score is 5"),
    ],
)
def test_mistakes_are_told_before_a_model_is_opened(arguments, message, models, texts, sts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*({"TEXTS": texts, "STS": sts}.get(argument, argument) for argument in arguments))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert models == []


def test_overwrite_replaces(models, sts, tmp_path):
    output = tmp_path / "out.json"
    output.write_text("old")
    assert run("uniformity", "one", "--data", sts, "-o", output).exit_code == 1
    assert output.read_text() == "old"
    assert run("uniformity", "one", "--data", sts, "-o", output, "--overwrite").exit_code == 0
    assert json.loads(output.read_text())["models"]


def test_sink(models, texts, tmp_path):
    output, plot = tmp_path / "out.json", tmp_path / "out.png"
    options = ["--prompt-name", "document", "--max-texts", 12]
    result = run("sink", "one", "two", "--data", texts, "--plot", plot, "-o", output, *options)
    assert result.exit_code == 0, result.stderr
    written = json.loads(output.read_text())["models"]
    assert [(entry["model"], entry["prompt_name"]) for entry in written] == [
        ("one", None),
        ("one", "document"),
        ("two", None),
        ("two", "document"),
    ]
    for line, entry in zip(result.stdout.splitlines()[2:], written, strict=True):
        assert line.split()[:2] == [entry["model"], entry["prompt_name"] or "–"]
        assert line.split()[2] == f"{entry['shares']['first'][0]:.3f}"  # a quarter of two layers is the first
        assert line.split()[5] == f"{entry['shares']['first'][1]:.3f}"
        assert sum(entry["mean"].values()) == pytest.approx(1)
    assert written[0]["shares"] == written[1]["shares"]  # its prompt is empty
    assert written[2]["mean"]["prompt"] == 0 < written[3]["mean"]["prompt"]
    assert plot.read_bytes().startswith(b"\x89PNG")
