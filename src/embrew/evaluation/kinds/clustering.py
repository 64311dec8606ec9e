"""Clustering: V-measure of mini-batch k-means on the vectors against the classes of the texts."""

from typing import Any

import numpy as np

from embrew.evaluation.task import Rows, TaskKind
from embrew.text_encoder import TextEncoder, checked_vectors


def score_clustering(
    encoder: TextEncoder, rows: Rows, *, repeats: int = 10, batch_size: int = 512, seed: int = 42, **options: Any
) -> dict[str, Any]:
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
