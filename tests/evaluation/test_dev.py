"""Dev and guard sets: names, splits, scores and texts."""

import pytest

import embrew.evaluation
from embrew.evaluation.dev import dev_sets
from tests.evaluation.scored import write


@pytest.fixture
def sets(tmp_path):
    """`one` (a dev and a test split), `two` (a validation split), `cars` (retrieval, a test split)."""
    pair = {"sentence1": "a dev text", "sentence2": "b", "score": 1.0}
    write(tmp_path / "one" / "dev.jsonl", pair)
    write(tmp_path / "one" / "test.jsonl", {**pair, "sentence1": "a test text"})
    write(tmp_path / "two" / "validation.jsonl", {"sentence1": "c", "sentence2": "d", "score": 1.0})
    write(tmp_path / "cars" / "corpus.jsonl", {"_id": "1", "title": "Title", "text": "body"}, {"_id": "2", "text": "x"})
    write(tmp_path / "cars" / "queries.jsonl", {"_id": "q", "text": "ask"}, {"_id": "r", "text": "not judged"})
    (tmp_path / "cars" / "qrels.test.tsv").write_text("q\t1\t1\n")
    return tmp_path


def test_means_and_each(sets, monkeypatch):
    asked = []

    def evaluate(encoder, data, *, batch_tokens, show_progress_bar):
        assert not show_progress_bar, "nothing is shown unless the command line asks for it"
        asked.append((encoder, [(task.name, task.split) for task in data], batch_tokens))
        scores = {"one": 0.25, "two": 0.75, "cars": 0.5}
        counts = {"pairs": 7}
        return [embrew.evaluation.Result(t.name, t.split, t.kind, scores[t.name], {}, 0.1, counts) for t in data]

    monkeypatch.setattr(embrew.evaluation, "evaluate", evaluate)
    found = dev_sets([sets / "one", sets / "two"], [sets / "cars"], metric="two", batch_tokens=512)
    assert found("the encoder") == {"dev": 0.5, "one": 0.25, "two": 0.75, "guard": 0.5, "guard/cars": 0.5}
    assert asked == [("the encoder", [("one", "dev"), ("two", "validation"), ("cars", "test")], 512)]
    assert found.metrics == ["dev", "one", "two"]
    about = {"kind": "retrieval", "split": "test", "metric": "nDCG@10", "size": "7 pairs"}
    assert found.about["guard/cars"].items() > about.items(), "a guard set is only reported, and says its split"
    assert "guard" not in dev_sets([sets / "one"])("another")


def test_texts_are_those_that_are_judged(sets):
    found = {name: list(texts) for name, texts in dev_sets([sets / "one"], [sets / "cars"]).texts().items()}
    assert found == {
        "one": ["a dev text", "b"],
        "cars queries": ["ask"],
        "cars documents": ["Title body", "body", "x"],
    }


def test_every_kind_has_its_texts(tmp_path):
    write(tmp_path / "c" / "train.jsonl", {"text": "learnt", "label": 0})
    write(tmp_path / "c" / "dev.jsonl", {"text": "asked", "label": 0})
    write(tmp_path / "r" / "dev.jsonl", {"query": "q", "positive": ["p"], "negative": ["n", "m"]})
    row = {"text": "t", "human_summaries": ["h"], "machine_summaries": ["m"], "relevance": [1.0]}
    write(tmp_path / "s" / "dev.jsonl", row)
    write(tmp_path / "p" / "dev.jsonl", {"sentence1": "left", "sentence2": "right", "label": 1})
    found = dev_sets([tmp_path / name for name in "crsp"]).texts()
    assert {name: list(texts) for name, texts in found.items()} == {
        "c": ["asked"],
        "r queries": ["q"],
        "r documents": ["p", "n", "m"],
        "s": ["t", "h", "m"],
        "p": ["left", "right"],
    }


def test_refused(sets):
    with pytest.raises(ValueError, match=r"evaluation.metric='on' is not a score; choose from dev, one"):
        dev_sets([sets / "one"], metric="on")
    with pytest.raises(ValueError, match="two dev or guard sets are called one"):
        dev_sets([sets / "one"], [sets / "one"])
    with pytest.raises(FileNotFoundError, match="no data folder"):
        dev_sets([sets / "one"], [sets / "none"])
    with pytest.raises(ValueError, match="is not a score"):
        dev_sets([sets / "one"], [sets / "two"], metric="two")


def test_a_file_named_after_its_split(sets):
    """Its name would be that of the mean."""
    assert dev_sets([sets / "one" / "dev.jsonl"]).metrics == ["dev", "one-dev"]
