"""Alignment and uniformity beside dev scores: the figures of `analyze uniformity`, in a run's log under their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embrew.analysis.uniformity import add_uniformity, alignment_uniformity
from embrew.cli import app
from embrew.evaluation.dev import dev_sets
from embrew.training.stage_evaluation import EvaluateSets
from tests.conftest import SENTENCES

STS = [
    {"sentence1": a, "sentence2": b, "score": 5.0 - abs(i - j)}
    for i, a in enumerate(SENTENCES)
    for j, b in enumerate(SENTENCES)
    if i < j
]
PAIRS = [{"anchor": text[:30], "positive": text[30:]} for text in SENTENCES]


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sts(tmp_path) -> Path:
    jsonl(tmp_path / "STS" / "test.jsonl", STS[:4])
    return jsonl(tmp_path / "STS" / "dev.jsonl", STS).parent


def test_the_same_figures_as_the_analysis(sts, make_encoder):
    encoder = make_encoder()
    sets = add_uniformity(dev_sets([sts]), sts, above=3.5)
    assert isinstance(sets, EvaluateSets)
    scores = sets(encoder)
    assert list(scores) == ["dev", "STS", "alignment", "uniformity"]
    positives = [(row["sentence1"], row["sentence2"]) for row in STS if row["score"] > 3.5]
    assert len(positives) == 4
    wanted = alignment_uniformity(encoder, positives, SENTENCES)  # type: ignore[arg-type]
    assert scores["alignment"] == pytest.approx(wanted.alignment, rel=1e-5)
    assert scores["uniformity"] == pytest.approx(wanted.uniformity, rel=1e-5)
    assert sets.metrics == ["dev", "STS"]  # nothing is chosen by them
    assert sets.about["uniformity"] == {
        "kind": "pairs", "split": "dev", "metric": "less is better", "size": "4 positives, 5 texts"
    }  # fmt: skip


def test_rows_of_query_and_positive(sts, tmp_path):
    sets = add_uniformity(dev_sets([sts]), jsonl(tmp_path / "held-out.jsonl", PAIRS), max_texts=3)
    assert len(sets.positives) == 3
    assert set(sets.positives) <= {(row["anchor"], row["positive"]) for row in PAIRS}
    assert len(sets.different) == 3


def test_what_is_refused(sts, tmp_path):
    with pytest.raises(ValueError, match=r"no pair scores above 4\.5; the highest score is 4; give a lower threshold"):
        add_uniformity(dev_sets([sts]), sts, above=4.5)
    named = jsonl(tmp_path / "alignment" / "dev.jsonl", STS).parent
    with pytest.raises(ValueError, match="a dev set is called alignment"):
        add_uniformity(dev_sets([named]), sts)


def test_a_run_logs_them(sts, model_folder, tmp_path):
    rows = [{"query": row["sentence1"], "positive": row["sentence2"]} for row in STS]
    recipe = {
        "encoder": {"model": str(model_folder("llama")), "pooling": {"mode": "mean"}, "lora": {"r": 4}},
        "stages": [
            {
                "name": "pairs",
                "objective": {"type": "contrastive"},
                "data": {"path": str(jsonl(tmp_path / "pairs.jsonl", rows))},
                "batch": {"size": 4},
                "training": {"max_steps": 3, "use_cpu": True},
            }
        ],
        "evaluation": {"dev": [str(sts)], "at": "log", "uniformity": {"path": str(sts), "above": 3.5}},
    }
    recipe["encoder"]["max_length"] = {"query": 64, "document": 64}  # type: ignore[index]
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    arguments = ["train", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "out"), "--verify", "off"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    log = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [point["step"] for point in log["curves"]["pairs"]] == [1, 2, 3]
    assert {"alignment", "uniformity"} <= log["scores"]["base"].keys() & log["curves"]["pairs"][0]["scores"].keys()
    assert log["scores"]["pairs"] == log["curves"]["pairs"][-1]["scores"]
    assert (
        "uniformity dev (4 positives, 5 texts), less is better"
        in (tmp_path / "out" / "pairs" / "README.md").read_text()
    )
