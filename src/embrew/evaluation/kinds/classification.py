"""Classification as in MTEB: logistic regression on the vectors of a few examples per class.

The accuracy is the mean over experiments, each with its own sample of training rows. It measures classification with
few labels, not with all training rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embrew.evaluation.rows import task_rows, training_rows
from embrew.evaluation.task import Columns, Evaluate, Evaluated, Task, TaskKind
from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import checked_vectors


def prepare(
    task: Task, *, samples_per_label: int = 8, experiments: int = 10, seed: int = 42, columns: Columns = None
) -> Evaluate:
    """Read labelled training and test texts, to evaluate encoders on them."""
    test, train = (
        (list(rows["text"]), list(rows["label"]))
        for rows in (task_rows(task, CLASSIFICATION, columns), training_rows(task, CLASSIFICATION, columns))
    )

    def evaluate(encoder: TextEncoder, options: Mapping[str, Any]) -> Evaluated:
        scores = evaluate_classification(
            encoder, train, test, samples_per_label=samples_per_label, experiments=experiments, seed=seed, **options
        )
        return scores, {"texts": len(test[0]), "classes": len(set(train[1]))}

    return evaluate


def evaluate_classification(
    encoder: TextEncoder,
    train: tuple[Sequence[str], Sequence[str]],
    test: tuple[Sequence[str], Sequence[str]],
    *,
    samples_per_label: int = 8,
    experiments: int = 10,
    seed: int = 42,
    **options: Any,
) -> dict[str, Any]:
    """Return accuracy (the main score) and macro F1 over experiments; `options` go to `encoder.encode`.

    In the examples, `predicted` is the class that most experiments predict; of several, the first one.

    Args:
        train: Texts and labels to sample from; only sampled texts are encoded.
        test: Texts and labels to predict.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score

    (train_texts, train_labels), (test_texts, test_labels) = train, test
    ids = label_ids([*train_labels, *test_labels])
    names = dict(zip(ids.tolist(), [*train_labels, *test_labels], strict=True))
    known, wanted = ids[: len(train_labels)], ids[len(train_labels) :]
    if len(set(known)) < 2:
        raise ValueError(f"classification needs two classes; the training rows have {sorted(set(train_labels))}")
    if set(wanted) - set(known):
        unseen = sorted({label for label, i in zip(test_labels, wanted, strict=True) if i not in set(known)})
        raise ValueError(f"the test rows have classes that no training row has: {', '.join(unseen[:5])}")
    draws = undersample(known, samples_per_label, experiments=experiments, seed=seed)
    drawn = sorted(set().union(*draws))
    position = {row: i for i, row in enumerate(drawn)}
    drawn_texts = [train_texts[i] for i in drawn]
    vectors = checked_vectors(encoder.encode(drawn_texts, **options), what="training texts", texts=drawn_texts)
    queries = checked_vectors(encoder.encode(list(test_texts), **options), what="test texts", texts=test_texts)
    accuracies, f1 = [], []
    votes = np.zeros((len(wanted), len(names)), dtype=np.int64)  # experiments by test text and predicted class
    for rows in draws:
        classifier = LogisticRegression(max_iter=100, random_state=seed)
        classifier.fit(vectors[[position[row] for row in rows]], known[rows])
        predicted = classifier.predict(queries)
        accuracies.append(float((predicted == wanted).mean()))
        votes[np.arange(len(wanted)), predicted] += 1
        f1.append(float(f1_score(wanted, predicted, average="macro")))
    accuracy = float(np.mean(accuracies))
    return {
        "main_score": accuracy,
        "accuracy": accuracy,
        "f1": float(np.mean(f1)),
        "accuracies": accuracies,
        "samples_per_label": samples_per_label,
        "examples": {
            "score": (votes[np.arange(len(wanted)), wanted] / experiments).tolist(),
            "gold": list(test_labels),
            "predicted": [names[i] for i in votes.argmax(axis=1)],
        },
    }


def undersample(labels: np.ndarray, samples_per_label: int, *, experiments: int, seed: int) -> list[list[int]]:
    """Return each experiment's training rows: the first of each class in a shuffled order.

    Each shuffle starts from the previous order with the same seed, as in MTEB, so that the rows are the same.
    """
    order = list(range(len(labels)))
    draws = []
    for _ in range(experiments):
        np.random.RandomState(seed).shuffle(order)
        taken: Counter[int] = Counter()
        rows = []
        for row in order:
            if taken[labels[row]] < samples_per_label:
                taken[labels[row]] += 1
                rows.append(row)
        draws.append(rows)
    return draws


def label_ids(labels: Sequence[str]) -> np.ndarray:
    """Return labels as numbers: sorted numerically if all are integers, else alphabetically."""
    names = set(labels)
    integers = all(name.lstrip("-").isdigit() for name in names)
    number = {name: i for i, name in enumerate(sorted(names, key=int) if integers else sorted(names))}
    return np.array([number[label] for label in labels])


CLASSIFICATION = TaskKind(
    name="classification",
    metric="accuracy",
    prepare=prepare,
    rows="labelled",
    about=("text",),
    columns=frozenset({"text", "label"}),
    train=True,
    mteb_types=("Classification",),
)
