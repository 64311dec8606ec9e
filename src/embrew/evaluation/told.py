"""What a memory or a text tells a language model about an answer, beside what another's and none tell it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # torch and transformers are imported when a model is evaluated: tables need neither
    from embrew.encoder import Encoder
    from embrew.generation import Bos, Source
    from embrew.text.tokens import Row


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
    * `other`: after what another row reads, which row is in `others`. None if too many rows read or answer the same.
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
    from embrew.generation import first_row

    found: dict[str, Told | None] = {"own": predicted(encoder, rows, source, bos, batch_tokens), "other": None}
    parts = [_parts(row) for row in rows]
    another = others([(tuple(read.ids), tuple(target.ids)) for read, target in parts], seed=seed)
    if another is not None:
        swapped = [parts[i][0] + parts[at][1] for at, i in enumerate(another)]
        found["other"] = predicted(encoder, swapped, source, bos, batch_tokens)
    alone = [first_row(encoder) + target for _, target in parts]
    return {**found, "none": predicted(encoder, alone, "text", bos, batch_tokens)}


def predicted(encoder: Encoder, rows: Sequence[Row], source: Source, bos: Bos, batch_tokens: int) -> Told:
    """Return how well the targets of rows are predicted, in float32, a part of the logits at a time."""
    from embrew.evaluation.targets import target_scores

    total, right, tokens = 0.0, 0, 0
    for losses, likeliest in target_scores(encoder, rows, source=source, bos=bos, batch_tokens=batch_tokens):
        total += float(losses.double().sum())
        right += int(likeliest.sum())
        tokens += len(losses)
    return Told(math.exp(total / max(tokens, 1)), right / max(tokens, 1))


def others(rows: Sequence[tuple[Hashable, Hashable]], *, seed: int) -> list[int] | None:
    """Return for each row, what is read and its target, the index of another one that shares neither, each row once.

    All rows are on one circle in a random order, those that share something beside each other, and each gets the row
    that lies further by as many as share the most. None if these are more than half of all.

    >>> others([("a", 1), ("b", 2), ("c", 3)], seed=1)
    [1, 2, 0]
    >>> others([("a", 1), ("b", 1)], seed=1) is None
    True
    """
    group = list(range(len(rows)))  # of each row: the first of those it is connected with
    first: dict[tuple[int, Hashable], int] = {}
    for at, row in enumerate(rows):
        for part in enumerate(row):
            found = group[first.setdefault(part, at)]
            group = [min(found, group[at]) if one in (found, group[at]) else one for one in group]
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    place: dict[int, int] = {}
    for i in order:
        place.setdefault(group[i], len(place))
    order.sort(key=lambda i: place[group[i]])
    shift = max(Counter(group).values(), default=1)
    if 2 * shift > len(rows):
        return None
    following = dict(zip(order, order[shift:] + order[:shift], strict=True))
    return [following[i] for i in range(len(rows))]


def _parts(row: Row) -> tuple[Row, Row]:
    """Return what is read, and the target after it."""
    from embrew.text.tokens import Row, Segment

    at = row.segments.index(Segment.TARGET) if Segment.TARGET in row.segments else len(row.ids)
    return Row(row.ids[:at], row.segments[:at]), Row(row.ids[at:], row.segments[at:])
