"""Figures of vectors against numpy, scipy and plain loops on counts of words."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from embrew.report.geometry import BINS, measure_vectors
from embrew.report.sample import sample_texts
from embrew.report.sections import geometry
from tests.report.tasks import retrieval, subject_of


@pytest.fixture
def pets(tmp_path: Path):
    return {("pets", "test"): retrieval(tmp_path / "pets")}


def _unit(encoder, texts) -> np.ndarray:
    vectors = encoder.encode(list(texts)).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_figures_are_those_of_numpy_and_scipy(pets, bag_of_words) -> None:
    found = measure_vectors(bag_of_words, pets)
    (sample,) = sample_texts(pets).values()
    vectors = _unit(bag_of_words, [text.text for text in sample.every])
    assert found["texts"] == len(vectors) == 42
    values = np.linalg.eigvalsh(np.cov(vectors.T))[::-1].clip(0)
    spectrum = found["spectrum"]
    assert spectrum["participation_ratio"] == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-5)
    assert spectrum["shares"][0] == pytest.approx(values[0] / values.sum(), rel=1e-5)
    assert spectrum["ranks"][0] == 1 and spectrum["ranks"][-1] == 512
    assert found["uniformity"] == pytest.approx(np.log(np.exp(-2 * pdist(vectors) ** 2).mean()), rel=1e-4)
    left, right = (_unit(bag_of_words, [pair[side].text for pair in sample.pairs]) for side in (0, 1))
    assert found["alignment"]["value"] == pytest.approx(np.mean(((left - right) ** 2).sum(1)), rel=1e-5)
    assert found["alignment"]["pairs"] == 12


def test_overlap_of_right_and_wrong_pairs_by_hand(pets, bag_of_words) -> None:
    found = measure_vectors(bag_of_words, pets)["separation"]["pets test"]
    (sample,) = sample_texts(pets).values()
    left, right = (_unit(bag_of_words, [pair[side].text for pair in sample.pairs]) for side in (0, 1))
    own = [float(a @ b) for a, b in zip(left, right, strict=True)]
    wrong = [float(left[i] @ right[j]) for i in range(12) for j in range(12) if i != j]
    d = (np.mean(own) - np.mean(wrong)) / np.sqrt((np.var(own) + np.var(wrong)) / 2)
    assert found["d_prime"] == pytest.approx(d, rel=1e-4)
    assert sum(found["right"]) == pytest.approx(1) and sum(found["wrong"]) == pytest.approx(1)
    assert len(found["right"]) == BINS
    middle = found["first"] + found["step"] * (np.arange(BINS) + 0.5)
    assert middle @ found["wrong"] == pytest.approx(np.mean(wrong), abs=found["step"])


def test_what_an_encoder_cannot_give_is_left_out_and_said(pets, bag_of_words) -> None:
    found = measure_vectors(bag_of_words, pets)
    assert found["memory"] is None and found["sink"] is None
    assert found["missing"] == {
        "memory tokens": "BagOfWords gives no states of memory tokens",
        "attention sink": "BagOfWords gives no attention weights",
    }
    json.dumps({key: value for key, value in found.items() if key != "map"}, allow_nan=False)


def test_collapsed_vectors_have_no_spectrum(pets, bag_of_words, monkeypatch) -> None:
    monkeypatch.setattr(type(bag_of_words), "_vectors", lambda self, side, texts, options: np.ones((len(texts), 4)))
    found = measure_vectors(bag_of_words, pets)
    assert found["spectrum"] is None and "the same" in found["missing"]["spectrum"]
    assert found["uniformity"] == pytest.approx(0, abs=1e-6)
    assert found["separation"]["pets test"]["d_prime"] in (None, 0.0)


def test_memory_tokens_and_attention_of_an_encoder(pets, make_encoder) -> None:
    found = measure_vectors(make_encoder(memory_tokens=3), pets)
    similarity = np.array(found["memory"]["similarity"])
    assert similarity.shape == (3, 3) and np.allclose(np.diag(similarity), 1, atol=1e-3)
    between = [similarity[i, j] for i, j in combinations(range(3), 2)]
    assert found["memory"]["mean_cosine"] == pytest.approx(np.mean(between), abs=1e-3)
    assert sum(shares[0] for shares in found["sink"]["shares"].values()) == pytest.approx(1, abs=1e-5)


def test_section_names_models_that_were_not_measured(pets, bag_of_words) -> None:
    examples = {"pets": {"score": [0.5] * 12}}
    subject = subject_of({"pets": pets["pets", "test"]}, {"A": examples, "B": examples})
    assert geometry.measure(bag_of_words, replace(subject, data={})) == {}
    measured = {"geometry": {"B": geometry.measure(bag_of_words, subject)}}
    section = geometry.section(replace(subject, measured=measured))
    assert section is not None
    assert section.values["not_measured"] == section.document["not_measured"] == ["A"]
    cells = {row["name"]: row["cells"] for row in section.values["rows"]}
    assert cells["dimensions"] == ["–", "512"]
    figures = {(one.model, one.quantity): one for one in section.figures}
    d = measured["geometry"]["B"]["separation"]["pets test"]
    assert figures["B", "d′"].value == d["d_prime"] and figures["B", "d′"].low == d["d_prime_interval"][0]
    assert ("A", "uniformity") not in figures and ("B", "uniformity") in figures
    assert section.values["memory"] is None and section.values["spectrum"] is not None
