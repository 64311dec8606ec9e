"""HotpotQA's rows, as `datasets` gives them, to a folder that can be judged."""

import json

import pytest

from embrew.data.beir import read_beir
from embrew.evaluation.hotpotqa import HotpotQA, store_hotpotqa
from embrew.evaluation.kinds.rag import read_questions

PARAGRAPHS = {
    "Ada": ["Ada was born in London.", " She wrote programs."],
    "Bonn": ["Bonn is a city."],
    "Emil": ["Emil lived in Bonn."],
    "Empty": ["", " "],
}


def row(name, question, answer, titles, facts):
    context = {"title": titles, "sentences": [PARAGRAPHS[title] for title in titles]}
    supporting = {"title": facts, "sent_id": [0] * len(facts)}
    return {"id": name, "question": question, "answer": answer, "supporting_facts": supporting, "context": context}


SPLITS = {
    "validation": [
        row("v1", "Where was Ada born?", "London", ["Ada", "Bonn", "Empty"], ["Ada", "Ada"]),
        row("v2", "Did Emil live in a city?", "yes", ["Emil", "Bonn"], ["Emil", "Bonn"]),
        row("v3", "Who?", "Emil", ["Ada"], ["Emil"]),  # fullwiki did not retrieve it
    ],
    "train": [row("t1", "What is Bonn?", "a city", ["Bonn", "Emil"], ["Bonn"])],
    "test": [{**row("x", "What?", None, ["Ada"], []), "answer": None}],
}


@pytest.fixture
def loads(monkeypatch):
    calls = []

    def load_dataset(path, name, *, split, revision):
        calls.append((path, name, split, revision))
        return iter(SPLITS[split])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return calls


def test_paragraphs_are_documents_once(loads, tmp_path):
    source = HotpotQA("hotpotqa/hotpot_qa", "distractor", corpus_splits=("train", "validation"), revision="abc")
    assert source.folder == "hub/hotpotqa--hotpot_qa-distractor-validation+train"
    place = tmp_path / source.folder
    assert store_hotpotqa(source, place)
    assert [call[2:] for call in loads] == [("validation", "abc"), ("train", "abc")]
    data = read_beir(place, "validation")
    assert [(document.title, document.text) for document in data.corpus] == [
        ("Ada", "Ada was born in London. She wrote programs."),
        ("Bonn", "Bonn is a city."),
        ("Emil", "Emil lived in Bonn."),
    ]
    assert data.qrels == {"v1": {"d0": 1}, "v2": {"d2": 1, "d1": 1}, "v3": {"d0": 0}}
    assert [(one.text, one.answers) for one in read_questions(place, data)] == [
        ("Where was Ada born?", ("London",)),
        ("Did Emil live in a city?", ("yes",)),
        ("Who?", ("Emil",)),
    ]


def test_it_is_loaded_once(loads, tmp_path):
    assert store_hotpotqa(HotpotQA("a/b"), tmp_path / "x")
    assert not store_hotpotqa(HotpotQA("a/b"), tmp_path / "x")
    assert len(loads) == 1
    assert store_hotpotqa(HotpotQA("a/b", revision="new"), tmp_path / "x")
    assert json.loads((tmp_path / "x" / "source.json").read_text())["source"]["revision"] == "new"


def test_what_is_not_of_its_form_is_refused(loads, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a/b test, row 1 has no answer; a split without answers cannot be evaluated"):
        store_hotpotqa(HotpotQA("a/b", split="test"), tmp_path / "x")
    monkeypatch.setitem(SPLITS, "validation", [{"question": "q", "context": "a text"}])
    with pytest.raises(ValueError, match="row 1 is not of HotpotQA's form.*found question, context"):
        store_hotpotqa(HotpotQA("a/b"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_suite_says_what_to_fetch_and_then_finds_it(loads, tmp_path):
    from typer.testing import CliRunner

    from embrew.cli import app
    from embrew.evaluation import read_suite

    suite = tmp_path / "s.yaml"
    suite.write_text(
        "tasks:\n  - {hub: hotpotqa/hotpot_qa, name: hot, subset: distractor, dims: [2, 4]}\n  - {data: mine}\n"
    )
    with pytest.raises(
        FileNotFoundError, match="lacks hub/hotpotqa--hotpot_qa-distractor-validation, mine; embrew data"
    ):
        read_suite(suite, data=tmp_path)
    done = CliRunner().invoke(app, ["data", "fetch", str(suite), "--to", str(tmp_path)])
    assert "hotpotqa/hotpot_qa: downloaded" in done.output
    assert "folders yourself: mine" in done.output
    suite.write_text("tasks:\n  - {hub: hotpotqa/hotpot_qa, name: hot, subset: distractor, dims: [2, 4]}\n")
    found = read_suite(suite, data=tmp_path)
    assert [(task.name, task.kind, task.split) for task in found.tasks] == [
        ("hot-d2", "rag", "validation"),
        ("hot-d4", "rag", "validation"),
    ]
    again = CliRunner().invoke(app, ["data", "fetch", str(suite), "--to", str(tmp_path)])
    assert "hotpotqa/hotpot_qa: already there" in again.output
