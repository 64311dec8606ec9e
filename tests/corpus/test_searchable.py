"""Encoded shards are searched with the model that encoded them; with any other they are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embrew.corpus import encode_corpus, query_options, read_vectors, texts_of
from embrew.data import Document
from embrew.search import SearchIndex
from tests.corpus.conftest import TEXTS
from tests.corpus.stub import Stub


def opened(folder: Path, encoder: object, corpus: Path) -> SearchIndex:
    vectors = read_vectors(folder)
    options = query_options(vectors, encoder)
    ids, array = vectors.load()
    documents = [Document(id=name, text=text) for name, text in zip(ids, texts_of(vectors, corpus), strict=True)]
    return SearchIndex.of_vectors(encoder, documents, array, query_options=options)


@pytest.mark.parametrize("settings", [{}, {"truncate_dim": 8, "num_layers": 1}])
def test_the_scores_are_the_cosines(settings, make_encoder, corpus, tmp_path):
    encoder = make_encoder(max_length=64, prompts={"query": "find: "})
    encode_corpus(encoder, corpus, tmp_path / "out", shard_rows=25, **settings)
    index = opened(tmp_path / "out", encoder, corpus)
    (query,) = encoder.encode_query(["a cat"], **settings)
    documents = encoder.encode_document(TEXTS, **settings)
    cosines = documents @ query / np.linalg.norm(documents, axis=1) / np.linalg.norm(query)
    (hits,) = index.search(["a cat"], top_k=60)
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines, reverse=True), abs=2e-6)
    for hit in hits:
        number = int(hit.document.id.removeprefix("d"))
        assert hit.document.text == TEXTS[number] and hit.score == pytest.approx(cosines[number], abs=2e-6)
    index.save(tmp_path / "saved")
    assert SearchIndex.load(tmp_path / "saved", encoder).search(["a cat"]) == index.search(["a cat"])


def test_another_encoder_is_refused(make_encoder, corpus, tmp_path):
    encode_corpus(Stub(), corpus, tmp_path / "out")
    with pytest.raises(ValueError, match="was encoded with another model; vectors of two models cannot be compared"):
        query_options(read_vectors(tmp_path / "out"), Stub(name="other"))
    with pytest.raises(ValueError, match="was encoded with another prompt"):
        query_options(read_vectors(tmp_path / "out"), Stub(prompts={"document": "passage: "}))
    with pytest.raises(ValueError, match=r"another model, tokenizer \(encoded in None, opened in float32\)"):
        query_options(read_vectors(tmp_path / "out"), make_encoder())
    for settings, said in (
        ({"prompt_name": "query"}, "holds vectors of a query"),
        ({"precision": "binary"}, "holds signs only"),
    ):
        name = next(iter(settings))
        encode_corpus(Stub(), corpus, tmp_path / name, **settings)
        with pytest.raises(ValueError, match=said):
            query_options(read_vectors(tmp_path / name), Stub())


def test_another_corpus_is_refused(corpus, tmp_path):
    encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=25)
    vectors = read_vectors(tmp_path / "out")
    lines = corpus.read_text().splitlines(keepends=True)
    for changed, row in ((lines[:-1], 51), ([*lines[:30], json.dumps({"_id": "d30", "text": "?"}) + "\n"], 26)):
        (tmp_path / "other.jsonl").write_text("".join(changed))
        with pytest.raises(ValueError, match=rf"does not hold the rows .* \(from row {row} on\)"):
            texts_of(vectors, tmp_path / "other.jsonl")
    (tmp_path / "more.jsonl").write_text("".join([*lines, '{"_id": "more", "text": "?"}\n']))
    with pytest.raises(ValueError, match="does not hold the rows"):
        texts_of(vectors, tmp_path / "more.jsonl")
