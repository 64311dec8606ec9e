"""Codes: int8 within half a step of ranges that are fixed once, binary as signs; and the bytes they take."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.util import quantize_embeddings

from embrew.corpus import Ranges, dequantize, encode_corpus, read_vectors
from embrew.corpus.job import MANIFEST, quantize
from tests.corpus.conftest import TEXTS
from tests.corpus.stub import Stub


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 40), scale=st.floats(1e-3, 1e3))
def test_int8_is_within_half_a_step(seed, rows, scale):
    vectors = (scale * np.random.default_rng(seed).standard_normal((rows, 7))).astype(np.float32)
    vectors[:, 3] = 1.5  # a dimension that never changes
    ranges = Ranges.fit(vectors)
    codes, cut = quantize(vectors, "int8", ranges)
    back = dequantize(codes, dimensions=7, ranges=ranges)
    step = np.array(ranges.step)
    assert codes.dtype == np.int8 and cut == 0
    assert (np.abs(back.astype(np.float64) - vectors) <= step / 2 + 1e-6 * np.abs(vectors)).all()


def test_values_outside_the_ranges_are_cut_and_counted():
    ranges = Ranges.fit(np.array([[-1.0, 0.0], [1.0, 1.0]], dtype=np.float32))
    codes, cut = quantize(np.array([[-9.0, 0.5], [9.0, 0.5]], dtype=np.float32), "int8", ranges)
    assert cut == 2 and codes[:, 0].tolist() == [-128, 127]


def test_binary_is_as_sentence_transformers_packs_it():
    vectors = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32)
    codes, _ = quantize(vectors, "binary")
    assert np.array_equal(codes, quantize_embeddings(vectors, precision="ubinary"))
    assert np.array_equal(dequantize(codes, dimensions=24), np.where(vectors > 0, 1, -1))
    odd, _ = quantize(vectors[:, :21], "binary")
    assert odd.shape == (5, 3) and np.array_equal(dequantize(odd, dimensions=21), np.where(vectors > 0, 1, -1)[:, :21])


def test_ranges_are_fixed_once_and_shards_agree(tmp_path):
    """The same text in two shards, one of them made by another run, has the same codes."""
    texts = [*TEXTS[:20], *TEXTS[:20]]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    encode_corpus(Stub(), tmp_path / "c.jsonl", tmp_path / "out", precision="int8", shard_rows=20)
    before = json.loads((tmp_path / "out" / MANIFEST).read_text())["ranges"]
    (tmp_path / "out" / "part-00001.parquet").unlink()
    encode_corpus(Stub(), tmp_path / "c.jsonl", tmp_path / "out", precision="int8", shard_rows=20)
    vectors = read_vectors(tmp_path / "out")
    (_, one), (_, other) = vectors
    assert one.dtype == np.int8 and np.array_equal(one, other)
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["ranges"] == before
    expected = Stub().encode(texts)
    assert (np.abs(vectors.load()[1] - expected) <= np.array(before["step"]) / 2 + 1e-7).all()


def test_many_values_outside_are_said(tmp_path, caplog):
    class Grows(Stub):
        def encode_document(self, inputs, **options):
            return super().encode_document(inputs, **options) * (10 if "late" in inputs[0] else 1)

    (tmp_path / "c.txt").write_text(
        "".join(f"early {i}\n" for i in range(20)) + "".join(f"late {i}\n" for i in range(20))
    )
    encode_corpus(Grows(), tmp_path / "c.txt", tmp_path / "out", precision="int8", shard_rows=20)
    assert "part-00001.parquet" in caplog.text and "of the values lie outside the int8 ranges" in caplog.text
