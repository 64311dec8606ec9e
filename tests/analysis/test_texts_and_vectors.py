"""Which texts are taken from what, and that the vectors of the analysis are the encoder's own, raw."""

import json

import numpy as np
import pytest
import torch

from embrew.analysis.input_texts import read_texts, unnormalised, vectors_of
from tests.conftest import SENTENCES


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_pairs_and_corpora(tmp_path):
    rows = write(tmp_path / "rows" / "dev.jsonl", [{"text": "b", "label": 1}, {"text": "a", "label": 0}] * 2)
    write(tmp_path / "rows" / "train.jsonl", [{"text": "c", "label": 1}])
    assert read_texts(tmp_path / "rows").texts == ["b", "a"]  # dev comes before train, each text once
    assert read_texts(tmp_path / "rows", split="train").texts == ["c"]
    assert read_texts(rows).side == "text"

    write(tmp_path / "sts" / "test.jsonl", [{"sentence1": f"x{i}", "sentence2": f"y{i}", "score": i} for i in range(3)])
    assert sorted(read_texts(tmp_path / "sts").texts) == ["x0", "x1", "x2", "y0", "y1", "y2"]

    corpus = [{"_id": "1", "title": "T", "text": "one"}, {"_id": "2", "title": "", "text": ""}]
    file = write(tmp_path / "beir" / "corpus.jsonl", corpus)
    for path in (tmp_path / "beir", file):
        texts = read_texts(path)
        assert (texts.texts, texts.side) == (["T one"], "document")


def test_a_sample_is_always_the_same(tmp_path):
    file = write(tmp_path / "many.jsonl", [{"text": f"text {i}"} for i in range(50)])
    sample = read_texts(file, max_texts=10)
    assert len(set(sample.texts)) == 10
    assert sample.texts != [f"text {i}" for i in range(10)]  # not the first ones, which may all be of a kind
    assert sample == read_texts(file, max_texts=10)
    assert sample.sha256 != read_texts(file, max_texts=10, seed=1).sha256
    assert read_texts(file, max_texts=99) == read_texts(file)


def test_what_holds_no_texts(tmp_path, caplog):
    file = write(tmp_path / "other.jsonl", [{"query": "a", "document": "b"}])
    with pytest.raises(ValueError, match="no texts to analyse in the columns document, query; give rows with text"):
        read_texts(file)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read_texts(tmp_path / "missing.jsonl")
    write(tmp_path / "empty.jsonl", [])
    with pytest.raises(ValueError, match="holds no rows"):
        read_texts(tmp_path / "empty.jsonl")
    write(tmp_path / "beir" / "corpus.jsonl", [{"_id": "1", "text": "one"}])
    read_texts(tmp_path / "beir", split="test")
    assert "is a corpus: split='test' has no effect" in caplog.text


def test_raw_vectors_of_an_encoder(make_encoder):
    encoder = make_encoder(prompts={"document": "doc: "})
    raw = unnormalised(encoder)
    with torch.no_grad():
        wanted = encoder(encoder.tokenize(SENTENCES)).numpy()
        documents = encoder(encoder.tokenize(SENTENCES, instruction="doc: ")).numpy()
    np.testing.assert_allclose(vectors_of(raw, SENTENCES, batch_tokens=100), wanted, atol=1e-5)
    np.testing.assert_allclose(vectors_of(raw, SENTENCES, side="document"), documents, atol=1e-5)
    assert encoder.normalize  # the encoder itself is as it was
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(SENTENCES), axis=1), 1, rtol=1e-5)


def test_raw_vectors_of_a_sentence_transformer():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import BoW

    encoder = SentenceTransformer(modules=[BoW(["a", "cat"]), Normalize()], device="cpu", prompts={"query": "Q"})
    raw = unnormalised(encoder)
    # it has no batch_tokens
    np.testing.assert_allclose(vectors_of(raw, ["a cat cat cat"], batch_tokens=5), [[1, 3]])
    assert raw.prompts["query"] == "Q"
    np.testing.assert_allclose(vectors_of(encoder, ["a cat cat cat"]), np.array([[1, 3]]) / np.sqrt(10), rtol=1e-6)
