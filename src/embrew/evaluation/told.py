"""What a memory or a text tells a language model about an answer, beside what another's and none tell it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # torch and transformers are imported when a model is evaluated: tables need neither
    from embrew.modeling.encoder import Encoder
    from embrew.modeling.generation import Bos, Source
    from embrew.modeling.text.tokens import Row


class Told(NamedTuple):
    """How well a language model predicts answers from their true tokens so far, over all tokens of all answers.

    Attributes:
        perplexity: exp of the mean of −log p.
        accuracy: share of tokens that are the likeliest ones.
    """

    perplexity: float
    accuracy: float


def told(
    encoder: Encoder,
    rows: Sequence[Row],
    *,
    source: Source,
    bos: Bos = "visible",
    seed: int = 42,
    batch_tokens: int = 4096,
) -> dict[str, Told | None]:
    """Return how well targets are predicted in three conditions.

    * `own`: after what their rows read: all of it, or its memory alone.
    * `other`: after what another row reads, which row is in `others`. None for a single row.
    * `none`: after BOS alone, at the positions that follow it. EOS stands in for BOS where there is none, since the
      first token needs a position that predicts it.

    Args:
        encoder: a causal LM under causal attention.
        rows: what is read, then the target, as `target_rows` makes them.
        source: what a target reads of that: `memory` or `text`.
        bos: whether the target reads BOS too, in addition to the memory.
        seed: of the choice of another row.
        batch_tokens: padded tokens per batch.
    """
    from embrew.modeling.generation import first_row

    found: dict[str, Told | None] = {"own": predicted(encoder, rows, source, bos, batch_tokens), "other": None}
    parts = [_parts(row) for row in rows]
    if len(rows) > 1:
        swapped = [parts[i][0] + parts[at][1] for at, i in enumerate(others(len(rows), seed=seed))]
        found["other"] = predicted(encoder, swapped, source, bos, batch_tokens)
    alone = [first_row(encoder) + target for _, target in parts]
    return {**found, "none": predicted(encoder, alone, "text", bos, batch_tokens)}


def predicted(encoder: Encoder, rows: Sequence[Row], source: Source, bos: Bos, batch_tokens: int) -> Told:
    """Return how well the targets of rows are predicted, in float32, a part of the logits at a time."""
    from embrew.modeling.generation import target_scores

    total, right, tokens = 0.0, 0, 0
    for losses, likeliest in target_scores(encoder, rows, source=source, bos=bos, batch_tokens=batch_tokens):
        total += float(losses.double().sum())
        right += int(likeliest.sum())
        tokens += len(losses)
    return Told(math.exp(total / max(tokens, 1)), right / max(tokens, 1))


def others(count: int, *, seed: int) -> list[int]:
    """Return for each of `count` rows the index of another one, each of them once: a seeded derangement.

    All rows are on one circle in a random order, and each gets the next one.

    >>> others(3, seed=1)
    [1, 2, 0]
    """
    order = list(range(count))
    random.Random(seed).shuffle(order)
    following = dict(zip(order, order[1:] + order[:1], strict=True))
    return [following[i] for i in range(count)]


def _parts(row: Row) -> tuple[Row, Row]:
    """Return what is read, and the target after it."""
    from embrew.modeling.text.tokens import Row, Segment

    at = row.segments.index(Segment.TARGET) if Segment.TARGET in row.segments else len(row.ids)
    return Row(row.ids[:at], row.segments[:at]), Row(row.ids[at:], row.segments[at:])
