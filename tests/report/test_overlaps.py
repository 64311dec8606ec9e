"""Texts of compared tasks among the rows that a model was trained on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from embrew.evaluation.find import find_task
from embrew.report import Model, compare_models
from embrew.report.overlaps import find_overlaps
from embrew.report.page import write_report
from embrew.report.section import Subject
from embrew.report.sources import ModelSource
from tests.report.subjects import result
from tests.report.tasks import write_rows

ROWS = [
    {"anchor": "A  CAT sleeps", "positive": "an animal rests"},  # case and blanks are another way to write a test text
    {"anchor": "trains are late", "positive": "a dog barks"},
    {"anchor": "nothing of the test", "positive": "something else"},
    {"anchor": "a cat sleeps on the sofa", "positive": "only a part"},
]


@pytest.fixture
def subject(tmp_path) -> Subject:
    """A run on four rows, of which two hold a text of the task, and a model whose training is not known."""
    task = find_task(
        write_rows(tmp_path / "T", [{"sentence1": "a cat sleeps", "sentence2": "a dog barks", "score": 1}])
    )
    train = write_rows(tmp_path / "pairs", ROWS, "train.jsonl")
    stage = tmp_path / "run" / "only"
    stage.mkdir(parents=True)
    (tmp_path / "run/run.json").write_text(json.dumps({"format": 2, "scores": {}, "stages": ["only"]}))
    recipe = {
        "encoder": {"model": "nano", "pooling": {"mode": "mean"}},
        "stages": [
            {
                "name": "only",
                "objective": {"type": "contrastive", "positives": "column"},
                "data": {"path": str(train)},
                "batch": {"size": 2},
                "training": {"max_steps": 1},
            }
        ],
    }
    (stage / "recipe.yaml").write_text(json.dumps(recipe))  # JSON is YAML
    models = [Model(name, [[result("T", [0.5] * 20)]]) for name in ("other", "trained")]
    sources = {"other": (ModelSource(),), "trained": (ModelSource(run=tmp_path / "run", stage="only"),)}
    return Subject(compare_models(models), data={("T", "test"): task}, sources=sources)


def test_rows_with_texts_of_a_task_are_counted_once_and_warned_of(subject, tmp_path):
    overlaps = find_overlaps(subject)
    (line,) = overlaps["trained"]["found"]
    assert line.startswith("2 of 4 rows of pairs (50.00%) hold a text of T (query 1, positive 1), for example ")
    assert overlaps["trained"]["not_checked"] == []
    assert overlaps["other"]["found"] == []
    assert "the run that trained the model is not known" in overlaps["other"]["not_checked"][0]
    write_report(replace(subject, overlaps=overlaps), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<bdi>trained</bdi> was trained on texts of these tasks" in page
    assert "<bdi>other</bdi> was trained on texts" not in page


def test_only_documents_that_answer_a_question_are_warned_of(subject, tmp_path):
    """Of a corpus of three: the first answers the query, the second is trained on, and later the first too."""
    folder = tmp_path / "S"
    corpus = [
        {"_id": f"d{i}", "text": text} for i, text in enumerate(("a dog runs", "something else", "not trained on"))
    ]
    write_rows(folder, corpus, "corpus.jsonl")
    write_rows(folder, [{"_id": "q", "text": "which animal?"}], "queries.jsonl")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td0\t1\nq\td1\t0\n")
    subject = replace(subject, data={("T", "test"): find_task(folder)})
    overlaps = find_overlaps(subject)
    assert overlaps["trained"]["found"] == []
    (line,) = overlaps["trained"]["documents"]
    assert line.startswith("1 of 4 rows of pairs (25.00%) hold a text of S documents (positive 1), for example ")
    write_report(replace(subject, overlaps=overlaps), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "was trained on texts of these tasks" not in page and "no row holds a text" not in page
    assert "1 of 4 rows of pairs" in page and page.count("Rows may hold documents of a task that is searched") == 1

    write_rows(tmp_path / "pairs", [*ROWS, {"anchor": "run", "positive": "A dog  runs"}], "train.jsonl")
    overlaps = find_overlaps(subject)
    (line,) = overlaps["trained"]["found"]
    assert line.startswith(
        "1 of 5 rows of pairs (20.00%) hold a text of S relevant documents (positive 1), for example "
    )


def test_rows_that_cannot_be_read_are_named(subject, tmp_path):
    file = tmp_path / "pairs/train.jsonl"
    file.write_text("not JSON\n")
    (line,) = find_overlaps(subject)["trained"]["not_checked"]
    assert line.startswith("training data pairs: not checked, because its rows cannot be read (")
    assert "train.jsonl, line 1: not valid JSON" in line
    file.unlink()
    file.parent.rmdir()
    (line,) = find_overlaps(subject)["trained"]["not_checked"]
    assert line.endswith(f"pairs: not checked, because {file.parent} is not on this machine")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("local:texts.jsonl", "training data texts.jsonl: not checked, because its folder is not stored in the run"),
        (
            "$NOT_SET_HERE/STS",
            "training data STS: not checked, because '$NOT_SET_HERE/STS' needs the environment variable NOT_SET_HERE, "
            "which is not set; export NOT_SET_HERE=FOLDER",
        ),
    ],
)
def test_rows_whose_folder_is_not_known(subject, tmp_path, path, line):
    file = tmp_path / "run/only/recipe.yaml"
    recipe = json.loads(file.read_text())
    recipe["stages"][0]["data"]["path"] = path
    file.write_text(json.dumps(recipe))
    assert find_overlaps(subject)["trained"]["not_checked"] == [line]


def test_rows_of_a_split_or_recipe_that_is_gone(subject, tmp_path):
    file = tmp_path / "run/only/recipe.yaml"
    recipe = json.loads(file.read_text())
    recipe["stages"][0]["data"]["split"] = "other"
    file.write_text(json.dumps(recipe))
    (line,) = find_overlaps(subject)["trained"]["not_checked"]
    assert line.startswith("training data pairs: not checked, because its rows cannot be read (")
    file.write_text(json.dumps({**recipe, "seeds": 1}))
    (line,) = find_overlaps(subject)["trained"]["not_checked"]
    assert line.startswith("training data: not checked, because the recipe cannot be read (") and "seeds" in line
    assert str(tmp_path) in line  # as the user gave it
    stored = {**subject.sources, "trained": (ModelSource(run=tmp_path / "run", stage="only", stored=True),)}
    (line,) = find_overlaps(replace(subject, sources=stored))["trained"]["not_checked"]
    assert "local:run/only/recipe.yaml" in line and str(tmp_path) not in line
