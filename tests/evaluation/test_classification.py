from typing import ClassVar

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from embrew.evaluation import evaluate
from embrew.evaluation.kinds.classification import label_ids, score_classification, undersample
from tests.rows import write_rows


def test_words_that_tell_the_classes_apart_are_found(bag_of_words, tmp_path):
    rows = [{"text": f"{word} {i}", "label": label} for i in range(12) for label, word in enumerate(("cat", "dog"))]
    write_rows(tmp_path / "pets" / "train.jsonl", rows)
    write_rows(tmp_path / "pets" / "test.jsonl", [{"text": "a cat", "label": 0}, {"text": "the dog", "label": 1}])
    (result,) = evaluate(bag_of_words, [tmp_path / "pets"])
    assert (result.kind, result.main_score, result.scores["f1"]) == ("classification", 1.0, 1.0)
    assert result.counts == {"texts": 2, "classes": 2}
    assert result.scores["samples_per_label"] == 8
    assert len(result.scores["accuracies"]) == 10
    (encoded, _) = bag_of_words.calls
    assert encoded[1] <= 24  # nothing is encoded twice


def rows(train, test):
    return {"train_text": train[0], "train_label": train[1], "text": test[0], "label": test[1]}


class Drawn(LogisticRegression):
    """Logistic regression whose predictions are given, one list per experiment."""

    predictions: ClassVar[list[list[int]]] = []

    def predict(self, X):
        return np.array(self.predictions.pop(0))


def test_the_class_that_most_experiments_predict_is_kept(bag_of_words, monkeypatch):
    monkeypatch.setattr("sklearn.linear_model.LogisticRegression", Drawn)
    Drawn.predictions = [[0, 1, 2], [1, 1, 0], [1, 2, 1], [0, 1, 0]]  # numbers of the classes 2, 9 and 10
    found = score_classification(
        bag_of_words, rows((["a", "b", "c"], ["9", "10", "2"]), (["x", "y", "z"], ["2", "9", "10"])), experiments=4
    )
    assert found["examples"] == {
        "score": [2 / 4, 3 / 4, 1 / 4],
        "gold": ["2", "9", "10"],
        "predicted": ["2", "9", "2"],  # two experiments each say 2 and 9 for x: the first of them
    }
    assert found["main_score"] == (2 + 3 + 1) / 12


def test_each_experiment_draws_a_few_of_every_class():
    labels = np.array([0, 1, 2] * 20)
    draws = undersample(labels, 4, experiments=3, seed=1)
    for rows in draws:
        assert sorted(labels[rows]) == [0] * 4 + [1] * 4 + [2] * 4
        assert len(set(rows)) == 12
    assert len({tuple(rows) for rows in draws}) == 3
    assert undersample(labels, 4, experiments=3, seed=1) == draws
    assert len(undersample(labels, 100, experiments=1, seed=1)[0]) == 60  # fewer than asked for: all


def test_labels_keep_the_order_of_numbers():
    assert label_ids(["10", "9", "10"]).tolist() == [1, 0, 1]
    assert label_ids(["b", "10", "a"]).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ((["a", "b"], ["x", "x"]), (["c"], ["x"]), r"needs two classes; the training rows have \['x'\]"),
        ((["a", "b"], ["x", "y"]), (["c"], ["z"]), "classes that no training row has: z"),
    ],
)
def test_classes_that_cannot_be_learned(bag_of_words, train, test, message):
    with pytest.raises(ValueError, match=message):
        score_classification(bag_of_words, rows(train, test))


def test_labels_are_integers_or_names(bag_of_words, tmp_path):
    write_rows(tmp_path / "x" / "train.jsonl", [{"text": "a", "label": 0.5}])
    write_rows(tmp_path / "x" / "test.jsonl", [{"text": "a", "label": 1}])
    with pytest.raises(ValueError, match=r"train.jsonl, line 1: column 'label' holds 0.5; a label is an integer or"):
        evaluate(bag_of_words, [tmp_path / "x"])
