"""Dev rows that are split off training rows are neither tested nor trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.analysis.demonstrations import choose_demonstrations
from embrew.analysis.uniformity import evaluation_of
from embrew.data.fingerprints import fingerprints
from embrew.evaluation import evaluate
from embrew.evaluation.dev import dev_sets
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.rows import task_retrieval, task_rows, training_rows
from embrew.model.contexts import Context
from embrew.recipe import DevRows, Recipe, StageConfig
from embrew.settings.encoder import Demonstration
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.evaluation.scored import PAIRS, sts_folder, write


@pytest.fixture
def sts(tmp_path) -> Path:
    return sts_folder(tmp_path / "sts")


def test_rows_of_training_rows(sts):
    """The same ones every time, other ones by another seed, and no text of the test split."""
    tested = {text for i in range(4) for text in (f"train {i}",)}
    sets = [dev_sets([DevRows(path=str(sts), rows=6, seed=seed)]) for seed in (1, 1, 2)]
    chosen = [[row["sentence1"] for row in task_rows(one.dev[0], KINDS["sts"])] for one in sets]
    assert chosen[0] == chosen[1] != chosen[2] and len(set(chosen[0])) == 6
    assert not tested & {*chosen[0], *chosen[2]}
    (texts,) = sets[0].texts().values()
    assert set(chosen[0]) == {text for text in texts if text.startswith("train")}
    assert sets[0].about["sts"]["split"] == "dev-from-train"
    with pytest.raises(ValueError, match="rows=27 of its 30 training rows, of which 26 share no text"):
        list(task_rows(dev_sets([DevRows(path=str(sts), rows=27)]).dev[0], KINDS["sts"]))
    with pytest.raises(ValueError, match="has no train split to split rows=2 off; it has test"):
        (sts / "train.jsonl").unlink()
        dev_sets([DevRows(path=str(sts), rows=2)])


def test_rows_of_other_kinds(tmp_path, bag_of_words):
    """Classes are learnt from the rows that are left; of a BEIR folder training queries are taken."""
    labelled = [{"text": f"{'abc'[i % 3]} word {i}", "label": i % 3} for i in range(60)]
    write(tmp_path / "labels" / "train.jsonl", *labelled)
    write(tmp_path / "beir" / "corpus.jsonl", *({"_id": str(i), "text": f"body {i}"} for i in range(9)))
    write(tmp_path / "beir" / "queries.jsonl", *({"_id": f"q{i}", "text": f"ask {i}"} for i in range(12)))
    (tmp_path / "beir" / "qrels").mkdir()
    (tmp_path / "beir" / "qrels" / "train.tsv").write_text("".join(f"q{i}\t{i % 9}\t1\n" for i in range(9)))
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("".join(f"q{i}\t{i % 9}\t1\n" for i in range(9, 12)))
    found = dev_sets([DevRows(path=str(tmp_path / name), rows=4) for name in ("labels", "beir")])
    labels, beir = found.dev
    kind = KINDS["classification"]
    parts = task_rows(labels, kind), training_rows(labels, kind)
    judged, learnt = ({row["text"] for row in rows} for rows in parts)
    assert len(judged) == 4 and len(learnt) == 56 and not judged & learnt
    assert len(task_retrieval(beir).queries) == 4 and set(task_retrieval(beir).qrels) <= {f"q{i}" for i in range(9)}
    results = evaluate(bag_of_words, [labels, beir], output_dir=tmp_path / "out")
    assert [(r.split, r.counts.get("texts", r.counts.get("queries"))) for r in results] == [("dev-from-train", 4)] * 2
    assert evaluate(bag_of_words, [labels, beir], output_dir=tmp_path / "out") == results, "kept, and read again"


@pytest.fixture
def values(model_folder, tmp_path) -> dict[str, Any]:
    """A stage on pairs, of which some are to be dev rows of their own retrieval folder."""
    pairs = [{"query": f"ask {i}", "positive": f"{SENTENCES[i % 5]} {i}"} for i in range(24)]
    write(tmp_path / "pairs.jsonl", *pairs)
    write(tmp_path / "beir" / "corpus.jsonl", *({"_id": str(i), "text": p["positive"]} for i, p in enumerate(pairs)))
    write(tmp_path / "beir" / "queries.jsonl", *({"_id": str(i), "text": p["query"]} for i, p in enumerate(pairs)))
    (tmp_path / "beir" / "qrels.train.tsv").write_text("".join(f"{i}\t{i}\t1\n" for i in range(24)))
    training = {"max_steps": 1, "use_cpu": True, "report_to": "none"}
    stage = {
        "name": "pairs",
        "objective": {"type": "contrastive", "positives": "column"},
        "data": {"path": str(tmp_path / "pairs.jsonl")},
        "batch": {"size": 4},
        "training": training,
    }
    return {
        "encoder": {"model": str(model_folder("llama")), "template": "{text}", "pooling": {"mode": "mean"}},
        "stages": [stage],
        "evaluation": {"dev": [{"path": str(tmp_path / "beir"), "rows": 5}]},
    }


def test_dev_rows_are_not_trained_on(values, tmp_path, monkeypatch):
    from embrew.recipe import build

    recipe = Recipe.from_values(values)
    seen: list[str] = []
    original = build.datasets

    def datasets(*given: Any, **options: Any) -> Any:
        parts = original(*given, **options)
        seen.extend(row["query"] for part in parts for row in part)
        return parts

    monkeypatch.setattr(build, "datasets", datasets)
    sets = evaluation_of(recipe)
    assert sets is not None
    train(recipe, tmp_path / "out", evaluate=sets, verify="off")
    dev = set(sets.texts()["beir queries"])
    assert len(dev) == 5 and len(seen) == 19 and not dev & set(seen)
    log = json.loads((tmp_path / "out" / "run.json").read_text())
    assert log["sets"]["beir"]["split"] == "dev-from-train"
    assert log["sets"]["beir"]["size"] == "5 queries + 24 documents"
    with pytest.raises(ValueError, match=r"pass evaluate=dev_sets_of\(recipe\)"):
        train(recipe, tmp_path / "without")
    other = {**values, "evaluation": {"dev": [{**values["evaluation"]["dev"][0], "seed": 1}]}}
    assert recipe.stage_hash(0) != Recipe.from_values(other).stage_hash(0), "another training set"
    assert Recipe.load(write_yaml(recipe, tmp_path)) == recipe


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_dev_rows_are_left_out_before_rows_are_split_into_sentences(kind, tmp_path, caplog, make_encoder):
    """With `sentences`, a dev text of three sentences, or a dev answer within a sentence, is no text of the rows."""
    from embrew.recipe import build

    texts = [f"Alpha {i} is here. Beta {i} is there. Gamma {i} is gone." for i in range(12)]
    rows, objective = [{"text": text} for text in texts], {"type": "contrastive", "positives": "dropout"}
    reserved = texts[:4]
    if kind == "pairs":
        rows = [{"query": text, "positive": f"Beta {i}"} for i, text in enumerate(texts)]
        objective, reserved = {"type": "contrastive", "positives": "column"}, [row["positive"] for row in rows[:4]]
    data = {"path": str(write(tmp_path / "rows.jsonl", *rows)), "sentences": True}
    stage = StageConfig.model_validate({"name": "a", "objective": objective, "data": data, "batch": {"size": 4}})
    with caplog.at_level("INFO"):
        (part,) = build.datasets(
            stage, build.objective(stage.objective), make_encoder(), reserved=np.unique(fingerprints(reserved))
        )
    left = 12 - 4
    each = 3 if kind == "text" else 1
    assert len(part) == left * each, "no sentence of a dev row"
    assert f"{4 * each} of {12 * each} rows hold dev rows and are not trained on" in caplog.text
    assert "reserved" not in part.column_names
    data["path"] = str(write(tmp_path / "all.jsonl", *rows[:4]))
    stage = StageConfig.model_validate({"name": "a", "objective": objective, "data": data, "batch": {"size": 4}})
    with pytest.raises(ValueError, match=f"all {4 * each} rows of a data set hold dev rows; lower rows of"):
        build.datasets(
            stage, build.objective(stage.objective), make_encoder(), reserved=np.unique(fingerprints(reserved))
        )


def write_yaml(recipe: Recipe, folder: Path) -> Path:
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    return folder / "recipe.yaml"


def test_the_choice_names_what_chose(sts, reads_demonstrations):
    encoder = reads_demonstrations
    choice = choose_demonstrations(encoder, Context("find: ", PAIRS), [2], [sts], from_train=6)
    assert choice.dev_sets == ("sts dev-from-train, 6 pairs",) and choice.test_sets == ("sts test, 12 pairs",)
    assert sorted(choice.dev) == [0, 2]
    shown = Context("find: ", (Demonstration("train 20", "an answer"),))
    chosen = choose_demonstrations(encoder, shown, [1], [sts], from_train=25)
    assert chosen.dev_sets == ("sts dev-from-train, 25 pairs",), "all that are free but the one that is shown"
    tested = Context("find: ", (Demonstration("Test  3", "an answer"),))
    with pytest.raises(ValueError, match=r"1 of 1 demonstrations are rows of sts test, for example 'Test  3'"):
        choose_demonstrations(encoder, tested, [1], [sts], from_train=6)
