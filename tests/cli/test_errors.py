import sys
import types

import pytest
from typer.testing import CliRunner

import embrew
import embrew.planning.plan  # before a module stands in for embrew.training
import embrew.report.untrained  # before one stands in for embrew.opening
from embrew.cli import app


def run(*arguments, **options):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


@pytest.fixture
def fake_stages(monkeypatch):
    """Stands in for training: `train` may be replaced, calls are kept."""
    stages = types.ModuleType("embrew.training.stages")
    stages.calls = []  # type: ignore[attr-defined]
    stages.train = lambda recipe, output, **options: stages.calls.append((recipe, output, options))  # type: ignore[attr-defined]
    package = types.ModuleType("embrew.training")
    package.stages = stages  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "embrew.training", package)
    monkeypatch.setitem(sys.modules, "embrew.training.stages", stages)
    monkeypatch.setattr(embrew, "training", package, raising=False)
    return stages


@pytest.fixture
def fake_build(monkeypatch):
    """Stands in for the opening of models."""
    opening = types.ModuleType("embrew.opening")
    opening.passport_files = lambda *_: None
    monkeypatch.setitem(sys.modules, "embrew.opening", opening)
    monkeypatch.setattr(embrew, "opening", opening, raising=False)
    return opening


NO_DEV = "evaluation=null"


# One line, no traceback, exit code 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "llm2comp/nanno", "-o", "x"], "did you mean 'llm2comp/nano'"),
        (["train", "llm2comp/nano", "encoder.modelx=x", "-o", "x"], "unknown key encoder.modelx"),
        (["train", "llm2comp/nano", "encoder.model", "-o", "x"], "write key.path=value"),
        (["evaluate", "nano", "--data", "no/such/folder"], "no data folder no/such/folder"),
        (["evaluate", "nano", "--data", "$EMBREW_NOT_SET/x"], "environment variable EMBREW_NOT_SET"),
        (["search", "nano", "--index", "no/such/index", "a question"], "build one with --build DOCUMENTS"),
        (["data", "show", "baselines/mean"], "has no stages"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(arguments, message, tmp_path, monkeypatch, fake_build):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EMBREW_NOT_SET", raising=False)
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    *before, error = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert all(line.startswith("loading ") for line in before)
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("size=0; give 1 or more"), "error: size=0; give 1 or more"),
        (TypeError("texts are strings"), "error: texts are strings"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "error: a.txt: No such file or directory"),
        (FileExistsError("out exists"), "error: out exists"),
        (OSError("no [bold]markup[/bold] is read"), "error: no [bold]markup[/bold] is read"),
    ],
)
def test_errors_from_below_are_said_in_their_own_words(error, said, tmp_path, fake_stages):
    def fail(*_, **__):
        raise error

    fake_stages.train = fail
    result = run("train", "llm2comp/nano", NO_DEV, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr == said + "\n"


def test_our_own_mistakes_keep_their_traceback(tmp_path, fake_stages):
    def fail(*_, **__):
        raise KeyError("x")

    fake_stages.train = fail
    result = run("train", "llm2comp/nano", NO_DEV, "-o", tmp_path)
    assert isinstance(result.exception, KeyError)


def test_debug_shows_the_traceback(tmp_path):
    result = run("--debug", "train", "llm2comp/nanno", "-o", tmp_path)
    assert isinstance(result.exception, FileNotFoundError)


def test_a_wrong_option_is_a_usage_error():
    assert run("train", "llm2comp/nano").exit_code == 2  # --output is missing
    assert run("train", "llm2comp/nano", "-o", "x", "--verify", "maybe").exit_code == 2
    assert "Did you mean 'train'" in run("trai").stderr


# Training: what is handed down, Ctrl-C, several processes


def test_ctrl_c_says_what_is_finished_and_exits_with_130(tmp_path, fake_stages):
    def stop(recipe, output, **options):
        (output / "compress").mkdir(parents=True)
        (output / "compress" / "embrew.json").write_text("{}")
        (output / "unsupervised").mkdir()  # begun, not finished
        raise KeyboardInterrupt

    fake_stages.train = stop
    result = run("train", "llm2comp/nano", NO_DEV, "-o", tmp_path / "out")
    assert result.exit_code == 130
    said = result.stderr.replace("\n", "")
    assert str(tmp_path / "out" / "compress") in said
    assert "unsupervised" not in said
    assert "--resume" in said


def test_ctrl_c_elsewhere_exits_with_130_too(fake_build, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    fake_build.open_model = stop
    (tmp_path / "index").mkdir()
    result = run("search", "nano", "--index", tmp_path / "index", "a question")
    assert result.exit_code == 130


def test_only_the_first_process_prints(tmp_path, fake_stages, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    quiet = run("train", "llm2comp/nano", NO_DEV, "-o", tmp_path)
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert len(fake_stages.calls) == 1
    wrong = run("train", "llm2comp/nano", "seed=x", "-o", tmp_path)
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith("error (process 1): ")


def test_a_missing_dev_folder_is_told_before_training(tmp_path, fake_stages, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("train", "baselines/nli-guarded-nano", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr == "error: no data folder data/stsb; run `embrew data fetch stsb`, which downloads it\n"
    assert fake_stages.calls == []


def test_a_metric_that_is_no_score_is_told_before_training(tmp_path, fake_stages):
    (tmp_path / "dev.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "score": 1.0}\n')
    settings = [f"evaluation={{dev: [{tmp_path}/dev.jsonl], every: 10, metric: stsb}}"]
    result = run("train", "llm2comp/nano", *settings, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert f"evaluation.metric='stsb' is not a score; choose from dev, {tmp_path.name}-dev" in result.stderr
    assert fake_stages.calls == []


# Evaluation and search


class LengthEncoder:
    """A text encoder without a model: (1, length) as a direction."""

    def __init__(self):
        self.prompts = {}

    def encode(self, inputs, **_):
        import numpy as np

        return np.array([[1.0, float(len(text))] for text in inputs], dtype=np.float32)

    encode_query = encode_document = encode

    def weights_hash(self):
        return "length"


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text('{"_id": "d1", "text": "ab"}\n{"_id": "d2", "title": "Long", "text": "abcdefgh  ijk"}\n')
    return path


def test_search_reads_questions_from_stdin(tmp_path, fake_build, documents):
    fake_build.open_model = lambda name, **_: LengthEncoder()
    assert run("search", "any", "--index", tmp_path / "i", "--build", documents).exit_code == 0
    result = run("search", "any", "--index", tmp_path / "i", "-k", 1, input="xy\n\nabcdefghijkl\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("1.000") == 2


def test_export_refuses_what_is_there_before_opening_a_model(tmp_path, fake_build):
    result = run("export", "any", tmp_path)
    assert result.exit_code == 1
    assert "exists" in result.stderr


# The process


def test_help_fits_one_screen_and_names_every_verb():
    result = run("--help")
    assert result.exit_code == 0
    verbs = "adapt train into-space evaluate table diff analyze encode search export merge average runs doctor"
    for verb in f"{verbs} context recipe data".split():
        assert verb in result.stdout
    assert len(result.stdout.splitlines()) <= 41


def test_log_lines_are_one_line_each_and_warnings_say_so(tmp_path, fake_stages):
    import logging

    def work(*_, **__):
        logging.getLogger("embrew.training").info("a line of %d characters: %s", 200, "x" * 200)
        logging.getLogger("embrew.training").warning("a [thing] to look at")
        logging.getLogger("embrew.training").debug("not shown")

    fake_stages.train = work
    result = run("train", "llm2comp/nano", NO_DEV, "-o", tmp_path)
    assert result.stderr.splitlines() == [
        "a line of 200 characters: " + "x" * 200,
        "warning: a [thing] to look at",
    ]
