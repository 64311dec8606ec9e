"""Retrieval-augmented answers on a corpus whose every cell can be worked out by hand."""

import json
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embrew.data.beir import Document
from embrew.evaluation import evaluate, find_task, grid_table, read_suite, table
from embrew.evaluation.find import cells
from embrew.evaluation.kinds.rag import Question, RagData, SideVectors, nearest, score_rag
from embrew.evaluation.overlap import check_demonstrations
from embrew.evaluation.task import GridCache
from embrew.report.comparison import models_of
from embrew.report.tables import grid
from tests.rows import write_rows


class Layered:
    """Two layers, three dimensions, a vector for each text.

    With all of it, both questions find theirs. In two dimensions q1 is nearer to d2 (cosine 2/√5, to d1 1/√2). The
    first layer mirrors the documents, so that d3 is nearest to both.
    """

    VECTORS: ClassVar = {
        "Where was Ada born?": [1, 0, 3],
        "Where did Emil live?": [3, 1, 0],
        "T Ada was born in London.": [1, 1, 3],
        "T Emil lived in Bonn.": [2, 1, 0],
        "T Nobody knows.": [-1, -1, -1],
        "word": [1, 1, 1],
    }

    def __init__(self):
        self.prompts = {}
        self.calls = []
        self.broken = 0

    def encode(self, inputs, *, num_layers=None, show_progress_bar=False, convert_to_numpy=True, prompt=None):
        if num_layers not in (None, 1, 2):
            raise ValueError(f"num_layers={num_layers}; choose from 1 to 2")
        if num_layers == self.broken and list(inputs) != ["word"]:
            raise RuntimeError("killed")
        self.calls.append((len(inputs), num_layers))
        sign = -1 if num_layers == 1 and inputs[0].startswith("T ") else 1
        return np.array([[sign * x for x in self.VECTORS.get(text, [9, 9, 9])] for text in inputs], dtype=np.float32)

    encode_query = encode_document = encode

    def texts(self, layers):
        return [count for count, depth in self.calls if depth == layers and count > 1]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "qa"
    texts = ["Ada was born in London.", "Emil lived in Bonn.", "Nobody knows."]
    rows = [{"_id": f"d{i}", "title": "T", "text": text} for i, text in enumerate(texts, start=1)]
    write_rows(place / "corpus.jsonl", [*rows, {"_id": "d0", "text": ""}])
    queries = [
        {"_id": "q1", "text": "Where was Ada born?", "answers": ["the London", "England"]},
        {"_id": "q2", "text": "Where did Emil live?", "answers": ["Bonn"]},
    ]
    write_rows(place / "queries.jsonl", queries)
    (place / "qrels.dev.tsv").write_text("q1\td1\t1\nq2\td2\t1\n")
    return place


def rag(folder, **settings):
    return find_task(folder, kind="rag", **settings)


def test_every_cell_by_hand(folder):
    encoder = Layered()
    results = evaluate(encoder, [rag(folder, dims=[2, 3], layers=[1, 2])])
    scores = {result.task: result.main_score for result in results}
    assert scores == {"qa-l1-d2": 0.0, "qa-l1-d3": 0.0, "qa-l2-d2": 0.5, "qa-l2-d3": 1.0}
    assert [call for call in encoder.calls if call[0] == 1] == [(1, 1), (1, 2)]  # a word at each depth
    assert encoder.texts(1) == encoder.texts(2) == [2, 3]  # questions and documents once for all sizes
    best = results[-1]
    assert best.counts == {
        "queries": 2,
        "documents": 3,
        "empty_documents": 1,
        "queries_with_span": 2,
        "self_matches": 0,
    }
    assert best.examples["retrieved"] == ["d1", "d2"]
    assert best.examples["score"] == [1.0, 1.0]
    for name in ("encode_seconds", "question_seconds", "document_seconds", "index_seconds", "search_seconds"):
        assert best.scores[name] >= 0
    assert best.scores["encode_seconds"] == best.scores["question_seconds"] + best.scores["document_seconds"]
    header, rows = grid_table(results)
    assert header == ["task", "split", "layers", "dims", "answer recall@1", "queries", "docs", "encode s", "search s"]
    assert rows[2][:7] == ["qa-l2-d2", "dev", "2", "2", "50.00", "2", "3"]
    assert table(results)[1][2][:5] == ["qa-l2-d2", "dev", "answer recall@1", "50.00", "2 queries + 3 documents"]


def test_names_say_what_was_listed(folder):
    assert [task.name for task in cells(rag(folder))] == ["qa"]
    assert [task.name for task in cells(rag(folder, dims=2, layers=1))] == ["qa"]
    assert [task.name for task in cells(rag(folder, dims=[2]))] == ["qa-d2"]
    made = cells(rag(folder, dims=[2, 3], layers=[2]))
    assert [(task.name, task.settings) for task in made] == [
        ("qa-l2-d2", {"dims": 2, "layers": 2}),
        ("qa-l2-d3", {"dims": 3, "layers": 2}),
    ]
    assert [cell for task in made for cell in cells(task)] == made


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 1000))
def test_euclidean_distance_ranks_as_the_cosine_does(count, dims, seed):
    draw = np.random.default_rng(seed)
    questions, documents = (
        draw.normal(size=(30, 8)) * 5,
        draw.normal(size=(count, 8)) * draw.uniform(0.1, 9, (count, 1)),
    )
    found, _ = nearest(SideVectors(questions.astype(np.float32), documents.astype(np.float32), 0, 0), dims)
    a, b = questions[:, :dims], documents[:, :dims]
    cosine = (a @ b.T) / np.linalg.norm(a, axis=1, keepdims=True) / np.linalg.norm(b, axis=1)
    best = cosine.max(axis=1)
    assert cosine[np.arange(30), found] == pytest.approx(best, abs=1e-5)


class Writes:
    """A generator that writes the last word of its context."""

    def __init__(self):
        self.answered = {}

    def answers(self, contexts, questions, *, batch_size, show_progress_bar):
        self.answered |= dict.fromkeys(zip(contexts, questions, strict=True), "")
        return [context.split()[-1] for context in contexts]


def test_exact_match_and_recall_are_both_there():
    questions = [
        Question("q1", "?", ("London",)),  # found, written
        Question("q2", "?", ("Bonn am Rhein", "Emil")),  # found, not written
        Question("q3", "?", ("yes",)),  # a context cannot contain it
    ]
    documents = [
        Document("d1", "Ada was born in London."),
        Document("d2", "Emil lived in Bonn."),
        Document("d3", "Yes!"),
    ]
    unit = np.eye(3, dtype=np.float32)
    vectors, last = SideVectors(unit, unit, 1.0, 2.0), SideVectors(unit[2:], unit, 1.0, 2.0)

    def score(vectors, questions, generator=None):
        cache = GridCache()
        data = RagData(questions, documents)
        cache.get("vectors", (data, Layered, None), lambda: vectors)
        cache.get("generator", ("nano", 32), Writes)
        return score_rag(Layered, data, cache, generator=generator)

    scores = score(vectors, questions, "nano")
    assert (scores["main_score"], scores["exact_match"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert scores["answer_recall_at_1"] == 1.0  # of two
    assert scores["examples"]["answer"] == ["London.", "Bonn.", "Yes!"]
    assert scores["examples"]["score"] == [1.0, 0.0, 1.0]
    assert (scores["encode_seconds"], scores["newly_answered"]) == (3.0, 3)
    alone = score(vectors, questions)
    assert (alone["main_score"], alone["examples"]["question"]) == (1.0, ["q1", "q2"])
    with pytest.raises(ValueError, match="every answer is yes, no or empty"):
        score(last, questions[2:])
    only = score(last, questions[2:], "nano")
    assert (only["main_score"], only["answer_recall_at_1"]) == (1.0, None)


def test_a_generator_answers_and_is_part_of_what_was_judged(folder, tmp_path, monkeypatch):
    opened = []

    def open_it(name, *, max_new_tokens):
        opened.append((name, max_new_tokens))
        return Writes()

    monkeypatch.setattr("embrew.evaluation.generator.Generator.open", open_it)
    task = rag(folder, dims=[2, 3], max_new_tokens=5)
    results = evaluate(Layered(), [task], generator="nano", output_dir=tmp_path / "out")
    assert opened == [("nano", 5)]  # once for all sizes
    assert [result.main_score for result in results] == [0.5, 1.0]
    assert [result.scores["newly_answered"] for result in results] == [2, 1]  # q2's context was known
    assert [row[5] for row in grid_table(results)[1]] == ["50.00", "100.00"]
    assert table(results)[1][0][2] == "exact match"
    run = json.loads((tmp_path / "out" / "qa-d2.dev.run.json").read_text())
    assert (run["settings"]["generator"]["kind"], run["settings"]["generator"]["name"]) == ("asset", "nano")
    with pytest.raises(FileExistsError, match="evaluated with other settings"):
        evaluate(Layered(), [task], output_dir=tmp_path / "out")


def test_a_killed_run_goes_on_with_the_cells_that_are_missing(folder, tmp_path):
    encoder, out = Layered(), tmp_path / "out"
    task = rag(folder, dims=[2, 3], layers=[1, 2])
    encoder.broken = 2
    with pytest.raises(RuntimeError, match="killed"):
        evaluate(encoder, [task], output_dir=out)
    assert sorted(file.name for file in out.glob("*.dev.json")) == ["qa-l1-d2.dev.json", "qa-l1-d3.dev.json"]
    again = Layered()
    results = evaluate(again, [task], output_dir=out)
    assert [result.main_score for result in results] == [0.0, 0.0, 0.5, 1.0]
    assert (again.texts(1), again.texts(2)) == ([], [2, 3])
    (out / "qa-l2-d2.dev.json").unlink()
    third = Layered()
    assert [result.main_score for result in evaluate(third, [task], output_dir=out)] == [0.0, 0.0, 0.5, 1.0]
    assert (third.texts(1), third.texts(2)) == ([], [2, 3])
    fourth = Layered()
    evaluate(fourth, [task], output_dir=out)
    assert fourth.calls == []
    header, rows = grid(models_of([f"a={out}"]))
    assert dict(zip(header, rows[0], strict=True))["qa-l2-d3 dev, 2 queries + 3 documents"] == "100.00"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dims": [2, 4]}, "task qa-d4: dims=4, but the encoder's vectors have 3 dimensions"),
        ({"layers": [1, 3]}, "task qa-l3: num_layers=3; choose from 1 to 2"),
        ({"dims": [2, 2]}, r"dims=\[2, 2\]; give numbers above 0, each once"),
        ({"dims": []}, r"dims=\[\]; give numbers above 0"),
        ({"layers": 0}, "layers=0; give numbers above 0"),
        ({"dims": [True]}, r"dims=\[True\]; give numbers above 0"),
        ({"generator": "no/such-model"}, "model 'no/such-model' is not nano"),
        ({"repeats": 3}, "repeats is not a setting of rag; choose from dims, layers, generator"),
    ],
)
def test_mistakes_are_found_before_the_texts_are_encoded(folder, settings, message):
    encoder = Layered()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        evaluate(encoder, [rag(folder, **settings)])
    assert not [call for call in encoder.calls if call[0] > 1]


def test_more_mistakes(folder, bag_of_words, encoder_folder, sts_folder):
    with pytest.raises(ValueError, match="layers=1, but a BagOfWords always runs all its layers"):
        evaluate(bag_of_words, [rag(folder, layers=1)])
    with pytest.raises(ValueError, match="is a BertForMaskedLM, which does not continue texts"):
        evaluate(Layered(), [rag(folder)], generator=str(encoder_folder("bert")))
    with pytest.raises(ValueError, match="generator='nano', but no task of the kind rag"):
        evaluate(bag_of_words, [sts_folder], generator="nano")
    with pytest.raises(FileNotFoundError, match="answers='no.jsonl' names; it is relative to the data folder"):
        rag(folder, answers="no.jsonl")
    with pytest.raises(ValueError, match="answers=3; give a file"):
        rag(folder, answers=3)
    with pytest.raises(ValueError, match="questions=3, but the split has 2"):
        evaluate(Layered(), [rag(folder, questions=3)])
    with pytest.raises(FileNotFoundError, match="which rag needs"):
        find_task(sts_folder, kind="rag")


def test_an_empty_document_is_not_found(folder, monkeypatch):
    """Its vector may be zero, at distance 1 from every question; a document of cosine 1/√10 is farther, at 1.17."""
    encoder = Layered()
    monkeypatch.setattr(encoder, "VECTORS", {**Layered.VECTORS, "": [0, 0, 0], "Where was Ada born?": [1, -1, 0]})
    (result,) = evaluate(encoder, [rag(folder)])
    assert result.examples["retrieved"] == ["d2", "d2"]
    assert (result.counts["documents"], result.counts["empty_documents"]) == (3, 1)


def test_demonstrations_are_no_questions_of_the_task(folder):
    check_demonstrations(["Who was Ada?"], [rag(folder)])
    with pytest.raises(ValueError, match="1 of 2 demonstrations are rows of qa dev, for example 'where was  ada BORN"):
        check_demonstrations(["Who was Ada?", "where was  ada BORN?"], [rag(folder)])


def test_a_suite_is_a_grid(folder, tmp_path):
    suite = tmp_path / "s.yaml"
    suite.write_text("tasks:\n  - {data: qa, kind: rag, dims: [2, 3]}\naverages: {both: [qa-d2, qa-d3]}\n")
    found = read_suite(suite, data=tmp_path)
    assert [(task.name, task.kind, task.split) for task in found.tasks] == [
        ("qa-d2", "rag", "dev"),
        ("qa-d3", "rag", "dev"),
    ]
    for text, message in [
        ("tasks: [{data: qa, kind: rag, corpus_splits: [train]}]", "corpus_splits are for mteb and hub"),
        ("tasks: [{hub: a/b, data: qa}]", "lacks hub/a--b-validation"),
        ("tasks: [{data: qa, kind: rag, dims: [0]}]", r"s.yaml:1: task qa: dims=\[0\]"),
        ("tasks: [{mteb: STS17, revision: x}]", "revision is not a setting of an mteb task"),
    ]:
        suite.write_text(text)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            read_suite(suite, data=tmp_path)


def test_a_real_encoder_at_each_depth(make_encoder, folder):
    encoder = make_encoder()
    results = evaluate(encoder, [rag(folder, dims=[8, 32], layers=[1, 2])])
    assert [result.scores["dimensions"] for result in results] == [8, 32, 8, 32]
    whole = evaluate(encoder, [rag(folder)])[0]
    assert whole.examples["retrieved"] == results[-1].examples["retrieved"]  # two layers are all of it


def test_the_command_shows_the_grid(folder):
    from typer.testing import CliRunner

    from embrew.cli import app

    done = CliRunner().invoke(app, ["evaluate", "nano", "-d", str(folder), "--kind", "rag", "--generator", "nano"])
    assert done.exit_code == 0, done.output
    heads, *names = done.output.splitlines()[-3:-1]
    assert heads.split() == ["answer", "exact", "encode", "search"]
    assert names[0].split() == ["task", "split", "layers", "dims", "recall@1", "match", "queries", "docs", "s", "s"]
    task, split, layers, dims, *_, queries, documents, _, _ = done.output.splitlines()[-1].split()
    assert (task, split, layers, dims, queries, documents) == ("qa", "dev", "all", "256", "2", "3")
