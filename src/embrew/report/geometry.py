"""Figures about the vectors of one model, all on the same sample of the tasks' texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.report.projection import components_of
from embrew.report.sample import SEED, Key, TaskVectors, encode_sample, sample_texts
from embrew.sampling import sample_in_order

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder.interface import TextEncoder

MEMORY_TEXTS = 200  # whose memory tokens are compared
SINK_TEXTS = 32  # whose attention is read
POINTS = 200  # of a spectrum
BINS = 40  # of a histogram of cosines


def name_of(key: Key) -> str:
    """Return a task and its split as a key of JSON."""
    return " ".join(key)


def measure_vectors(encoder: TextEncoder, data: Mapping[Key, Task]) -> dict[str, Any]:
    """Return the figures of an encoder, as data for JSON, and the maps' coordinates; empty if there are no texts.

    All figures are of unit vectors, which cosines compare and which any runtime gives.

    Returns:
        `texts`, `spectrum`, `uniformity`, `alignment`, `separation` and `map` by task, `memory`, `sink`, and `missing`:
        why a figure is not there, by its name.
    """
    samples = sample_texts(data)
    vectors = encode_sample(encoder, data, {key: sample for key, sample in samples.items() if sample.every})
    if not vectors:
        return {}
    together = np.concatenate([each.vectors for each in vectors.values()])
    texts = [text.text for each in vectors.values() for text in each.sample.texts]
    missing: dict[str, str] = {}

    def attempt(name: str, figure: Callable[[], Any]) -> Any:
        try:
            return figure()
        except ValueError as error:
            missing[name] = str(error)
            return None

    return {
        "texts": len(together),
        "spectrum": attempt("spectrum", lambda: _spectrum(together)),
        "uniformity": attempt("uniformity", lambda: _uniformity(together)),
        "alignment": attempt("alignment", lambda: _alignment(list(vectors.values()))),
        "separation": {
            name_of(key): attempt(f"cosines of {name_of(key)}", lambda one=each: _separation(one))  # type: ignore[misc]
            for key, each in vectors.items()
            if each.sample.pairs
        },
        "memory": attempt("memory tokens", lambda: _memory(encoder, sample_in_order(texts, MEMORY_TEXTS, seed=SEED))),
        "sink": attempt("attention sink", lambda: _sink(encoder, sample_in_order(texts, SINK_TEXTS, seed=SEED))),
        "map": {
            name_of(key): components_of(each.of(each.sample.texts))._asdict()
            for key, each in vectors.items()
            if each.sample.texts
        },
        "missing": missing,
    }


def _spectrum(vectors: np.ndarray) -> dict[str, Any]:
    """Return effective dimensions, and singular values as shares of their sum at up to `POINTS` ranks from 1."""
    from embrew.analysis.spectrum import spectrum_of

    spectrum = spectrum_of([vectors])
    values = spectrum.singular_values
    ranks = np.unique(np.geomspace(1, len(values), POINTS).round().astype(int))
    return {**spectrum.summary(), "ranks": ranks.tolist(), "shares": (values[ranks - 1] / values.sum()).tolist()}


def _uniformity(vectors: np.ndarray) -> float:
    from embrew.analysis.uniformity import uniformity

    return uniformity(vectors)


def _alignment(vectors: Sequence[TaskVectors]) -> dict[str, Any]:
    """Return alignment over the positive pairs of all tasks, and their number."""
    from embrew.analysis.uniformity import alignment

    sides = [
        np.concatenate([each.of(pair[side] for pair in each.sample.pairs) for each in vectors if each.sample.pairs])
        for side in (0, 1)
        if any(each.sample.pairs for each in vectors)
    ]
    if not sides:
        raise ValueError("the tasks have no positive pairs (query and relevant document, or STS pairs above 4 of 5)")
    return {"value": alignment(sides[0], sides[1]), "pairs": len(sides[0])}


def _separation(vectors: TaskVectors) -> dict[str, Any]:
    """Return cosines of right pairs and of the other combinations: d′ and its interval, means, and histograms."""
    from embrew.analysis.separation import BINS as FINE
    from embrew.analysis.separation import separation

    pairs = vectors.sample.pairs
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    same = np.array([[vectors.rows[text] for text in side] for side in (left, right)])
    found = separation(vectors.of(left), vectors.of(right), same=same)
    used = np.nonzero(found.histograms.sum(0))[0]
    width = -(-(used[-1] + 1 - used[0]) // BINS)  # of a bin, in bins of the analysis
    counts = found.histograms[:, used[0] : used[0] + BINS * width]
    counts = np.pad(counts, ((0, 0), (0, BINS * width - counts.shape[1]))).reshape(2, BINS, width).sum(2)
    step = float(FINE[1] - FINE[0]) * float(width)
    return {
        **found.summary(),
        "first": round(float(FINE[used[0]]), 6),
        "step": round(step, 6),
        "right": (counts[0] / found.matched).tolist(),
        "wrong": (counts[1] / found.mismatched).tolist(),
    }


def _memory(encoder: TextEncoder, texts: Sequence[str]) -> dict[str, Any]:
    """Return the mean cosines between memory tokens and their summary."""
    from embrew.analysis.memory import memory_similarity, summarize
    from embrew.encoder import Encoder

    if type(encoder) is not Encoder:  # no graph of another runtime either
        raise ValueError(f"{type(encoder).__name__} gives no states of memory tokens")
    similarity = memory_similarity(encoder, texts)
    return {**summarize(similarity, pick="medoid"), "similarity": similarity.round(4).tolist(), "texts": len(texts)}


def _sink(encoder: TextEncoder, texts: Sequence[str]) -> dict[str, Any]:
    """Return the last token's attention by layer."""
    from embrew.analysis.sink import sink_of
    from embrew.encoder import Encoder

    if type(encoder) is not Encoder:  # no graph of another runtime either
        raise ValueError(f"{type(encoder).__name__} gives no attention weights")
    return sink_of(encoder, texts).summary()
