"""Vectors on disk are those of `encode`, in the corpus' order, and say what they were made of."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.job import ABOUT, MANIFEST
from embrew.export.exporting import export_encoder
from tests.corpus.conftest import TEXTS
from tests.corpus.stub import Stub


def test_vectors_are_those_of_encode_in_order(make_encoder, corpus, tmp_path):
    encoder = make_encoder(max_length=64, prompts={"query": "find: "})
    for side, oracle in (("document", encoder.encode_document), ("query", encoder.encode_query)):
        summary = encode_corpus(encoder, corpus, tmp_path / side, shard_rows=7, batch_tokens=200, prompt_name=side)
        assert (summary.rows, summary.shards, summary.kept, summary.rejected) == (60, 9, 0, 0)
        ids, vectors = read_vectors(tmp_path / side).load()
        assert ids == [f"d{i}" for i in range(60)]
        assert np.abs(vectors - oracle(TEXTS)).max() <= 2e-6
    assert json.loads((tmp_path / "query" / MANIFEST).read_text())["made_of"]["prompt"] == "find: "


def test_dimensions_and_layers(make_encoder, corpus, tmp_path):
    encoder = make_encoder()
    summary = encode_corpus(encoder, corpus, tmp_path / "out", truncate_dim=8, num_layers=1)
    _, vectors = read_vectors(tmp_path / "out").load()
    assert summary.dimensions == 8
    assert np.abs(vectors - encoder.encode_document(TEXTS, truncate_dim=8, num_layers=1)).max() <= 2e-6
    with pytest.raises(ValueError, match="num_layers=1: a Stub cannot stop after some of its layers"):
        encode_corpus(Stub(), corpus, tmp_path / "other", num_layers=1)


def test_a_sentence_transformer(make_encoder, corpus, tmp_path):
    encoder = make_encoder(max_length=64)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    encode_corpus(stock, corpus, tmp_path / "out", shard_rows=50)
    _, vectors = read_vectors(tmp_path / "out").load()
    assert np.abs(vectors - encoder.encode_document(TEXTS)).max() <= 2e-6
    assert encode_corpus(stock, corpus, tmp_path / "out", shard_rows=50).kept == 2, "encoding changes no hash"


def test_every_kind_of_file_gives_the_same(corpus, tmp_path):
    import gzip

    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    (tmp_path / "many").mkdir()
    (tmp_path / "beir").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    (tmp_path / "many" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:20]))
    pq.write_table(pa.Table.from_pylist(rows[20:]), tmp_path / "many" / "b.parquet")
    (tmp_path / "beir" / "corpus.jsonl").write_bytes(corpus.read_bytes())
    (tmp_path / "beir" / "queries.jsonl").write_text('{"_id": "q", "text": "not this"}\n')
    expected = Stub().encode(TEXTS)
    for i, place in enumerate((corpus, *(tmp_path / name for name in ("a.parquet", "a.txt.gz", "many", "beir")))):
        encode_corpus(Stub(), place, tmp_path / str(i), shard_rows=13)
        ids, vectors = read_vectors(tmp_path / str(i)).load()
        assert np.array_equal(vectors, expected), place
        assert ids == ([str(k + 1) for k in range(60)] if ".txt" in place.name else [row["_id"] for row in rows])


def test_ids_titles_and_columns(tmp_path):
    rows = [{"key": 7, "title": "Cats", "text": "sleep", "body": "purr"}, {"key": "x", "title": None, "text": "bark"}]
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    encode_corpus(Stub(), tmp_path / "a.jsonl", tmp_path / "one", id_column="key")
    ids, vectors = read_vectors(tmp_path / "one").load()
    assert ids == ["7", "x"] and np.array_equal(vectors, Stub().encode(["Cats sleep", "bark"]))
    folder = tmp_path / "both"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text(json.dumps(rows[0]) + "\n")
    encode_corpus(Stub(), folder, tmp_path / "two", text_column="body")
    ids, vectors = read_vectors(tmp_path / "two").load()
    assert ids == ["a.jsonl:1", "b.jsonl:1"], "numbers alone would be the same in both files"
    assert np.array_equal(vectors, Stub().encode(["purr", "purr"]))


def test_only_the_folder_is_written(corpus, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    encode_corpus(Stub(), corpus, tmp_path / "deep" / "out", shard_rows=25)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert {path: after[path] for path in before} == before
    new = {str(path.relative_to(tmp_path / "deep")) for path in after if path not in before} - {"."}
    shards = [f"out/part-0000{i}.parquet" for i in range(3)]
    assert new == {
        "out",
        f"out/{ABOUT}",
        f"out/{MANIFEST}",
        *shards,
        *(f"out/{ABOUT}/part-0000{i}.texts" for i in range(3)),
    }


def test_an_embedding_that_is_no_vector_is_named(corpus, tmp_path):
    for wrong, said in ((0.0, "zero"), (float("inf"), "not finite"), (float("nan"), "not finite")):

        class Broken(Stub):
            def encode_document(self, inputs, wrong=wrong, **options):
                vectors = super().encode_document(inputs, **options)
                vectors[[text == TEXTS[33] for text in inputs]] = wrong
                return vectors

        place = tmp_path / f"out {wrong}"
        with pytest.raises(ValueError, match=rf"corpus.jsonl, line 34: the vector of the row with id 'd33' is {said}"):
            encode_corpus(Broken(), corpus, place, shard_rows=10)
        assert len(list(place.glob("part-*"))) == 3, "what came before is kept"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "int4"}, "choose from float32, int8, binary"),
        ({"prompt_name": "passage"}, "choose from query, document"),
        ({"on_bad_rows": "ignore"}, "choose from strict, skip"),
        ({"shard_rows": 0}, "shard_rows=0; give 1 or more"),
        ({"max_reject_rate": 2}, "give a share from 0 to 1"),
    ],
)
def test_settings_that_are_wrong(settings, message, corpus, tmp_path):
    with pytest.raises(ValueError, match=message):
        encode_corpus(Stub(), corpus, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_batch_tokens_where_the_encoder_knows_them(corpus, tmp_path):
    stub = Stub()
    encode_corpus(stub, corpus, tmp_path / "a")
    assert "batch_tokens" not in stub.asked[0]

    class Knows(Stub):
        def encode(self, inputs, batch_tokens=None, **options):
            return super().encode(inputs, budget=batch_tokens, **options)

    knows = Knows()
    encode_corpus(knows, corpus, tmp_path / "b")
    encode_corpus(knows, corpus, tmp_path / "c", batch_tokens=99)
    assert [asked["budget"] for asked in knows.asked] == [2048, 99]


def test_what_is_no_corpus(tmp_path):
    with pytest.raises(FileNotFoundError, match="give a path, or a URL of s3://, gs:// or hf://"):
        encode_corpus(Stub(), tmp_path / "missing.jsonl", tmp_path / "out")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="holds no rows; leave the file out"):
        encode_corpus(Stub(), tmp_path / "empty.jsonl", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="holds no vectors"):
        read_vectors(tmp_path)
    with pytest.raises(ValueError, match="is not complete"):
        read_vectors(tmp_path / "out")
