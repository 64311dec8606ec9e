"""Classification and clustering of texts with labels.

Classification is as in MTEB: logistic regression on the vectors of a few examples per class. The accuracy is the mean
over experiments, each with its own sample of training rows. It measures classification with few labels, not with all
training rows. Clustering is mini-batch k-means, whose clusters are compared with the classes by their V-measure.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from embrew.evaluation.task import NamedScores, TaskColumns, TaskKind
from embrew.text_encoder import EncodeOptions, TextEncoder, checked_vectors


def score_classification(
    encoder: TextEncoder,
    rows: TaskColumns,
    *,
    samples_per_label: int = 8,
    experiments: int = 10,
    seed: int = 42,
    **options: Unpack[EncodeOptions],
) -> NamedScores:
    """Return accuracy (the main score) and macro F1 over experiments; only sampled training texts are encoded.

    In the examples, `predicted` is the class that most experiments predict; of several, the first one.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score

    train_labels, test_labels = rows["train_label"], rows["label"]
    ids = label_ids([*train_labels, *test_labels])
    names = dict(zip(ids.tolist(), [*train_labels, *test_labels], strict=True))
    train, gold = ids[: len(train_labels)], ids[len(train_labels) :]
    if len(set(train)) < 2:
        raise ValueError(f"classification needs two classes; the training rows have {sorted(set(train_labels))}")
    if unseen := sorted(set(test_labels) - set(train_labels)):
        raise ValueError(f"the test rows have classes that no training row has: {', '.join(unseen[:5])}")
    draws = undersample(train, samples_per_label, experiments=experiments, seed=seed)
    drawn = sorted(set().union(*draws))
    position = {row: i for i, row in enumerate(drawn)}
    texts = [rows["train_text"][i] for i in drawn]
    vectors = checked_vectors(encoder.encode(texts, **options), what="training texts", texts=texts)
    queries = checked_vectors(encoder.encode(rows["text"], **options), what="test texts", texts=rows["text"])
    accuracies, f1 = [], []
    votes = np.zeros((len(gold), len(names)), dtype=np.int64)  # experiments by test text and predicted class
    for draw in draws:
        classifier = LogisticRegression(max_iter=100, random_state=seed)
        classifier.fit(vectors[[position[row] for row in draw]], train[draw])
        predicted = classifier.predict(queries)
        accuracies.append(float((predicted == gold).mean()))
        votes[np.arange(len(gold)), predicted] += 1
        f1.append(float(f1_score(gold, predicted, average="macro")))
    accuracy = float(np.mean(accuracies))
    return {
        "main_score": accuracy,
        "accuracy": accuracy,
        "f1": float(np.mean(f1)),
        "accuracies": accuracies,
        "samples_per_label": samples_per_label,
        "counts": {"texts": len(gold), "classes": len(set(train))},
        "examples": {
            "score": (votes[np.arange(len(gold)), gold] / experiments).tolist(),
            "gold": test_labels,
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
        counts: Counter[int] = Counter()
        rows = []
        for row in order:
            if counts[labels[row]] < samples_per_label:
                counts[labels[row]] += 1
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
    score=score_classification,
    rows="labelled",
    about=("text",),
    train=True,
    mteb_types=("Classification",),
)


def score_clustering(
    encoder: TextEncoder,
    rows: TaskColumns,
    *,
    repeats: int = 10,
    batch_size: int = 512,
    seed: int = 42,
    **options: Unpack[EncodeOptions],
) -> NamedScores:
    """Return the mean V-measure (Rosenberg and Hirschberg 2007) of k-means with as many clusters as classes.

    MTEB runs k-means once on the whole set, or ten times on samples of it; here it runs on the whole set with ten
    initialisations, which reduces the variance.

    Args:
        encoder: Encodes the texts.
        rows: Texts with their labels.
        repeats: Number of initialisations, with the seeds `seed`, `seed + 1`, ….
        batch_size: Vectors per step of k-means.
        seed: Seed of the first initialisation.
        options: Keywords of `encoder.encode`.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.metrics import v_measure_score

    texts, labels = rows["text"], rows["label"]
    classes = len(set(labels))
    if classes < 2 or len(texts) < classes:
        raise ValueError(f"clustering needs two classes and more texts than classes; found {classes}, {len(texts)}")
    vectors = checked_vectors(encoder.encode(texts, **options), what="texts", texts=texts)
    scores = []
    for start in range(repeats):
        means = MiniBatchKMeans(classes, batch_size=batch_size, n_init="auto", random_state=seed + start)
        scores.append(float(v_measure_score(labels, means.fit_predict(vectors))))
    mean, counts = float(np.mean(scores)), {"texts": len(texts), "classes": classes}
    deviation = float(np.std(scores))
    return {"main_score": mean, "v_measure": mean, "v_measure_std": deviation, "v_measures": scores, "counts": counts}


CLUSTERING = TaskKind(
    name="clustering",
    metric="V-measure",
    score=score_clustering,
    rows="labelled",
    about=("text",),
    mteb_types=("Clustering",),
)
