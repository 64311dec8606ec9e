"""What takes a SentenceTransformer takes an encoder, with the results that the encoder's own export gives."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer import evaluation

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from tests.conftest import SENTENCES

LEFT, RIGHT = SENTENCES, [text[::-1] for text in SENTENCES]
QUERIES = {f"q{i}": text[:20] for i, text in enumerate(SENTENCES)}
CORPUS = {f"d{i}": text for i, text in enumerate([*SENTENCES, *RIGHT])}
RELEVANT = {f"q{i}": {f"d{i}"} for i in range(len(SENTENCES))}


class Both(NamedTuple):
    """An encoder, and its export opened by Sentence-Transformers: the oracle."""

    ours: Encoder
    stock: SentenceTransformer


MADE: list[Both] = []  # once for all tests, which change nothing of it


@pytest.fixture
def both(make_encoder, tmp_path) -> Both:
    if not MADE:
        encoder = make_encoder(prompts={"query": "find: ", "document": "keep: "}, max_length=48)
        export_encoder(encoder, tmp_path / "stock", verify="off")
        MADE.append(Both(encoder, SentenceTransformer(str(tmp_path / "stock"), device="cpu")))
    return MADE[0]


def nano_beir(monkeypatch: pytest.MonkeyPatch) -> Any:
    def local(self: Any, name: str, **options: Any) -> Any:
        return evaluation.InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT, name=name, **options)

    monkeypatch.setattr(evaluation.NanoBEIREvaluator, "_load_dataset", local)
    return evaluation.NanoBEIREvaluator(["msmarco", "nq"])


def reranking_samples() -> list[dict[str, Any]]:
    return [{"query": q, "positive": [p], "negative": RIGHT} for q, p in zip(QUERIES.values(), LEFT, strict=True)]


EVALUATORS: dict[str, Callable[[Any, pytest.MonkeyPatch], Any]] = {
    "BinaryClassificationEvaluator": lambda m, _: evaluation.BinaryClassificationEvaluator(
        LEFT, RIGHT, [1, 0, 1, 0, 1]
    ),
    "EmbeddingSimilarityEvaluator": lambda m, _: evaluation.EmbeddingSimilarityEvaluator(
        LEFT, RIGHT, [0.1, 0.5, 0.3, 0.9, 0.7]
    ),
    "InformationRetrievalEvaluator": lambda m, _: evaluation.InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT),
    "MSEEvaluator": lambda m, _: evaluation.MSEEvaluator(LEFT, RIGHT, teacher_model=m),
    "MSEEvaluatorFromDataFrame": lambda m, _: evaluation.MSEEvaluatorFromDataFrame(
        [{"en": a, "de": b} for a, b in zip(LEFT, RIGHT, strict=True)], teacher_model=m, combinations=[("en", "de")]
    ),
    "NanoBEIREvaluator": lambda m, patch: nano_beir(patch),
    "ParaphraseMiningEvaluator": lambda m, _: evaluation.ParaphraseMiningEvaluator(
        CORPUS, [("d0", "d1"), ("d2", "d5")]
    ),
    "RerankingEvaluator": lambda m, _: evaluation.RerankingEvaluator(reranking_samples()),
    "SequentialEvaluator": lambda m, _: evaluation.SequentialEvaluator(
        [evaluation.TranslationEvaluator(LEFT, RIGHT, name=name) for name in ("a", "b")]
    ),
    "TranslationEvaluator": lambda m, _: evaluation.TranslationEvaluator(LEFT, RIGHT),
    "TripletEvaluator": lambda m, _: evaluation.TripletEvaluator(LEFT, [t[:30] for t in LEFT], RIGHT),
}
WITH_OPTIONS: dict[str, Callable[[Any, pytest.MonkeyPatch], Any]] = {
    "EmbeddingSimilarityEvaluator int8": lambda m, _: evaluation.EmbeddingSimilarityEvaluator(
        LEFT, RIGHT, [0.1, 0.5, 0.3, 0.9, 0.7], precision="int8"
    ),
    "InformationRetrievalEvaluator truncated": lambda m, _: evaluation.InformationRetrievalEvaluator(
        QUERIES, CORPUS, RELEVANT, truncate_dim=16
    ),
}
NO_EVALUATORS = {
    "BaseEvaluator": "abstract",
    "SentenceEvaluator": "the former name of BaseEvaluator",
    "SimilarityFunction": "an enumeration",
    "LabelAccuracyEvaluator": "runs a training loss of Sentence-Transformers and its collator on the model's modules",
}


def test_every_evaluator_is_covered():
    assert set(evaluation.__all__) == {*EVALUATORS, *NO_EVALUATORS}
    assert len(EVALUATORS) == 11


@pytest.mark.parametrize("name", [*EVALUATORS, *WITH_OPTIONS])
def test_evaluators(name, both, monkeypatch):
    """Each with its default arguments, and some with options."""
    both.ours.model_card_data.eval_results_dict.clear()
    own, theirs = ((EVALUATORS | WITH_OPTIONS)[name](model, monkeypatch)(model) for model in both)
    assert own == pytest.approx(theirs, abs=1e-3) and all(map(math.isfinite, own.values()))
    assert both.ours.model_card_data.eval_results_dict, "evaluators keep their metrics there"


def mined(model: Any, folder: Path) -> list[dict[str, Any]]:
    pairs = Dataset.from_dict({"anchor": list(QUERIES.values()), "positive": LEFT})
    rows = util.mine_hard_negatives(
        pairs, model, corpus=RIGHT, num_negatives=2, verbose=False, cache_folder=str(folder / type(model).__name__)
    )
    return list(rows)


def test_miners(both, tmp_path):
    own, theirs = (mined(model, tmp_path) for model in both)
    assert own == theirs and own
    own, theirs = (util.paraphrase_mining(model, LEFT, truncate_dim=16) for model in both)
    assert np.allclose(own, theirs, atol=1e-4)


def test_kept_vectors_of_the_miner_are_of_one_encoder(both, tmp_path):
    """`cache_folder` names files by the card's `base_model`, which is the same for two encoders on one base."""
    other = copy.deepcopy(both.ours)
    first = mined(both.ours, tmp_path)
    with torch.no_grad():
        other.backbone.memory.copy_(torch.randn_like(other.backbone.memory) * 3)
    mined(other, tmp_path)
    assert first and len(list((tmp_path / "Encoder").glob("*.npy"))) == 4, "two files for each of two encoders"


@pytest.mark.slow
def test_mteb_evaluates_an_encoder(both):
    mteb = pytest.importorskip("mteb")
    from mteb.mocks.mock_tasks import MockClassificationTask, MockRetrievalTask, MockSTSTask

    kinds = (MockSTSTask, MockRetrievalTask, MockClassificationTask)
    own, theirs = (
        mteb.evaluate(model, [kind() for kind in kinds], cache=None, show_progress_bar=False) for model in both
    )
    assert len(own.task_results) == 3
    assert [r.get_score() for r in own.task_results] == pytest.approx(
        [r.get_score() for r in theirs.task_results], abs=1e-4
    )
    assert (own.model_name, own.model_revision) == ("embrew/tiny", both.ours.weights_hash())


def test_mteb_queries_get_their_prompt_and_length(make_encoder):
    encoder = make_encoder(prompts={"query": "find: "}, max_length={"query": 16, "document": 32})
    batches, about = [{"text": SENTENCES[:2]}, {"text": SENTENCES[2:]}], {"hf_split": "test", "hf_subset": "default"}
    for side, expected in {
        "query": encoder.encode_query(SENTENCES),
        "document": encoder.encode_document(SENTENCES),
        None: encoder.encode(SENTENCES),
    }.items():
        found = encoder.encode(batches, task_metadata=None, prompt_type=side, batch_size=4, **about)
        assert np.array_equal(found, expected), side
    with pytest.raises(ValueError, match="mteb gives image and no text"):
        encoder.encode([{"image": [1]}], task_metadata=None, **about)


@pytest.mark.parametrize(("how", "container"), [("function", list), ("method", pd.Series)])
def test_a_scikit_learn_pipeline(how, container, both):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    texts = container([f"{word} {text[:30]}" for text in SENTENCES for word in ("cats", "dogs", "1 2 3", "river")])
    labels = [i // 4 for i in range(20)]

    def embed(some: Any) -> np.ndarray:
        return both.ours.encode_document(some)

    step = FunctionTransformer(embed if how == "function" else both.ours.encode_document)
    scores = cross_val_score(make_pipeline(step, LogisticRegression()), texts, labels, cv=4)
    expected = cross_val_score(LogisticRegression(), both.ours.encode_document(list(texts)), labels, cv=4)
    assert scores == pytest.approx(expected) and scores.mean() > 0.3


def test_a_copy_gives_the_same_vectors(both):
    """scikit-learn copies what it is given; a function is not copied, a method is, with its encoder."""
    assert np.array_equal(copy.deepcopy(both.ours).encode(SENTENCES), both.ours.encode(SENTENCES))
