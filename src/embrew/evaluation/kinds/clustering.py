"""Clustering: V-measure of mini-batch k-means on the vectors against the classes of the texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import Columns, Evaluate, Task, TaskKind
from embrew.text_encoder.interface import TextEncoder
from embrew.text_encoder.vectors import checked_vectors


def prepare(
    task: Task, *, repeats: int = 10, batch_size: int = 512, seed: int = 42, columns: Columns = None
) -> Evaluate:
    """Read labelled texts, to evaluate encoders on them."""
    rows = task_rows(task, CLUSTERING, columns)
    texts, labels = list(rows["text"]), list(rows["label"])
    settings: dict[str, Any] = {"repeats": repeats, "batch_size": batch_size, "seed": seed}
    counts = {"texts": len(texts), "classes": len(set(labels))}
    return lambda encoder, options: (evaluate_clustering(encoder, texts, labels, **settings, **options), counts)


def evaluate_clustering(
    encoder: TextEncoder,
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    repeats: int = 10,
    batch_size: int = 512,
    seed: int = 42,
    **options: Any,
) -> dict[str, Any]:
    """Return the mean V-measure (Rosenberg and Hirschberg 2007) of k-means with as many clusters as classes.

    MTEB runs k-means once on the whole set, or ten times on samples of it; here it runs on the whole set with ten
    initialisations, which reduces the variance.

    Args:
        repeats: Number of initialisations, with the seeds `seed`, `seed + 1`, ….
        batch_size: Vectors per step of k-means.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.metrics import v_measure_score

    classes = len(set(labels))
    if classes < 2 or len(texts) < classes:
        raise ValueError(f"clustering needs two classes and more texts than classes; found {classes}, {len(texts)}")
    vectors = checked_vectors(encoder.encode(list(texts), **options), what="texts", texts=texts)
    scores = []
    for start in range(repeats):
        means = MiniBatchKMeans(classes, batch_size=batch_size, n_init="auto", random_state=seed + start)
        scores.append(float(v_measure_score(labels, means.fit_predict(vectors))))
    mean = float(np.mean(scores))
    return {"main_score": mean, "v_measure": mean, "v_measure_std": float(np.std(scores)), "v_measures": scores}


CLUSTERING = TaskKind(
    name="clustering",
    metric="V-measure",
    prepare=prepare,
    rows="labelled",
    about=("text",),
    columns=frozenset({"text", "label"}),
    mteb_types=("Clustering",),
)
