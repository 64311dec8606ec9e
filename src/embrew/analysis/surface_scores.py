"""Score an encoder at several numbers of layers and dimensions with one forward pass per text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embrew.analysis.layer_vectors import LayerVectors
from embrew.analysis.surface import LAST, Surface
from embrew.encoder import Encoder
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.report import size_of
from embrew.evaluation.scoring import prepare
from embrew.evaluation.task import Task
from embrew.text_encoder.interface import encode_options

DIMS = (8, 16, 32, 64, 128, 256, 512)
MAX_BYTES = 4_000_000_000


def surface_of(
    encoder: Encoder,
    tasks: Sequence[Task],
    *,
    layers: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    batch_tokens: int | None = None,
    max_bytes: int = MAX_BYTES,
    show_progress_bar: bool = False,
) -> Surface:
    """Score every cell of layers × dimensions with one forward pass per text, and time every layer.

    Args:
        encoder: a causal LM or BERT-type encoder with any pooling.
        tasks: tasks to evaluate (`embrew.evaluation.find_task`).
        layers: numbers of layers; default: the last 12. The last layer is always included.
        dims: numbers of dimensions; default: 8, 16, 32, …. The full number is always included.
        batch_tokens: padded tokens per batch.
        max_bytes: limit of the memory for vectors: 4 bytes × layers × texts × dimensions.
        show_progress_bar: show progress bars.

    Raises:
        ValueError: the encoder lacks layers or dimensions or is not an `Encoder`, or vectors exceed `max_bytes`.

    Examples:
        >>> found = surface_of(encoder, [find_task("STSB")], dims=[64, 128])  # doctest: +SKIP
        >>> found.pick(0.98)  # doctest: +SKIP
        Cell(layers=4, dim=128, score=0.7514, kept=0.9821, milliseconds=1.9, bytes=512)
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(
            f"a {type(encoder).__name__} returns its last layer only; open its transformer by a recipe, as "
            "baselines/all-minilm-l6-v2 does"
        )
    if not tasks:
        raise ValueError("no tasks; give one or more")
    depth, width = encoder.backbone.num_layers, encoder.get_embedding_dimension()
    rows = _axis("layers", layers or range(max(1, depth - LAST + 1), depth + 1), depth)
    columns = _axis("dims", dims or [dim for dim in DIMS if dim < width], width)
    kept = LayerVectors(encoder, rows, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    for task in tasks:
        if KINDS[task.kind].grid:
            raise ValueError(
                f"task {task.name}: {task.kind} has its own settings {' and '.join(KINDS[task.kind].grid)}; list "
                "them in a suite instead"
            )
    prepared = [prepare(task) for task in tasks]
    options = encode_options(encoder)
    sizes = [size_of(evaluate(kept.plan(), options)[1]) for evaluate in prepared]
    kept.check_size(max_bytes)
    scores = np.array(
        [[[evaluate(kept.at(i, j), options)[0]["main_score"] for j in columns] for i in rows] for evaluate in prepared]
    )
    return Surface(rows, columns, tuple(tasks), scores, tuple(kept.milliseconds()), kept.texts, tuple(sizes))


def _axis(name: str, given: Sequence[int], most: int) -> tuple[int, ...]:
    wrong = [number for number in given if not 1 <= number <= most]
    if wrong:
        raise ValueError(f"{name}: {', '.join(map(str, wrong))}; this encoder has 1 to {most}")
    return tuple(sorted({*given, most}))
