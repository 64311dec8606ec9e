"""The number of memory tokens of a text, where it depends on the text's length."""

from __future__ import annotations

from math import ceil

from embrew.text.tokens import Row, Segment


def memory_count(tokens: int, *, ratio: float, bank: int, room: int | None = None) -> int:
    """Return Z = ⌈|X| / R⌉, at least 1 and at most `bank`: *Learn Before Represent*, section 3.2, R = |X| / |Z|.

    Args:
        tokens: |X|, the tokens of the text.
        ratio: R.
        bank: number of memory tokens to choose from.
        room: tokens for text and memory together. Only what is left of a truncated text is covered: the fewest tokens Z
            with Z · R >= min(|X|, room − Z).

    >>> [memory_count(tokens, ratio=100, bank=8) for tokens in (1, 100, 101, 5000)]
    [1, 1, 2, 8]
    """
    needed = ceil(tokens / ratio)
    if room is not None:
        needed = min(needed, ceil(room / (ratio + 1)))
    return min(max(needed, 1), bank)


def with_fewer(suffix: Row, before: Row, segment: Segment, *, ratio: float, max_length: int | None) -> Row:
    """Return the suffix of a text with as many memory tokens as its length requires: the last ones of the bank.

    So the last memory token is the same for every text, and the embedding can be read there.

    Args:
        suffix: words, then the whole bank, then what ends the row.
        before: what the row has before it; only the text counts, neither BOS nor instruction nor words of the template.
        segment: label of the text's tokens.
        ratio: R.
        max_length: of the whole row.
    """
    bank = suffix.segments.count(Segment.MEMORY)
    first = suffix.segments.index(Segment.MEMORY)
    text = before.segments.count(segment)
    room = None if max_length is None else max_length - (len(before.ids) - text) - (len(suffix.ids) - bank)
    left_out = bank - memory_count(text, ratio=ratio, bank=bank, room=room)
    kept = slice(first + left_out, None)
    return Row(suffix.ids[:first] + suffix.ids[kept], suffix.segments[:first] + suffix.segments[kept])
