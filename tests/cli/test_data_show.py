import json

import pytest
from typer.testing import CliRunner

from embrew.cli import app


def test_overlap_is_counted_without_a_model(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"query": "A  text", "positive": "b"}\n{"query": "c", "positive": "d"}\n')
    (tmp_path / "near.jsonl").write_text('{"sentence1": "a text", "sentence2": "x", "score": 1.0}\n')
    settings = [f"stages.supervised.data={{path: {tmp_path}/pairs.jsonl}}", "encoder.model=no-such-model"]
    dev = f"evaluation={{dev: [{tmp_path}/near.jsonl]}}"
    result = CliRunner().invoke(app, ["data", "overlap", "baselines/nli-nano", *settings, dev])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        "supervised: 1 of 2 rows of pairs.jsonl (50.00%) hold a text of near (query 1), for example 'A text'\n"
    )
    result = CliRunner().invoke(app, ["data", "overlap", "baselines/nli-nano"])
    assert result.exit_code == 1 and "has no evaluation" in result.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [{"text": "A short text." if i % 4 else "A long text. " * 200} for i in range(8)]
    pairs = [{"query": f"What is [{i}]?", "positive": f"It is {i}.", "negatives": ["No."]} for i in range(8)]
    for name, rows in (("wiki-paragraphs", texts), ("squad-pairs", pairs)):
        place = tmp_path / "data" / name / "train.jsonl"
        place.parent.mkdir(parents=True)
        place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_every_stage_is_shown_as_the_model_sees_it(folder):
    keep = ["stages.compress.data.min_chars=1", "stages.supervised.data.instruction=Find it: |"]
    result = CliRunner().invoke(app, ["data", "show", "llm2comp/nano", *keep], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.stderr
    said = result.stdout
    assert [said.index(f"{name} (") for name in ("compress", "unsupervised", "supervised")] == sorted(
        said.index(f"{name} (") for name in ("compress", "unsupervised", "supervised")
    )
    assert said.count("25.0% of 8 texts exceed 96 and are truncated") == 1  # two of the eight texts of the first stage
    assert "columns text" in said
    assert "text from query" in said
    assert "columns query; positive; negatives" in said
    assert said.count("1. text: ") == 2
    memory = [line for line in said.splitlines() if line.strip().startswith("MEMORY")]
    assert len(memory) == 2 + 3  # a text in two stages; query, positive and negatives in the third
    assert all("<memory 0>" in line and "<memory 7>" in line and "all pooled" in line for line in memory)
    assert "bidirectional: every token attends to every token" in said
    assert "mean over memory" in said
    prompts = [line for line in said.splitlines() if line.strip().startswith("PROMPT")]
    assert len(prompts) == 5
    assert ["·it" in line for line in prompts] == [False, False, True, False, False]  # on the query alone


def test_a_column_that_is_not_there_is_an_error(folder):
    result = CliRunner().invoke(app, ["data", "show", "llm2comp/nano", "stages.compress.data.columns.text=body"])
    assert result.exit_code == 1
    assert "'body' is not there" in result.stderr
