"""Rows with a limit: only the text in them is truncated."""

from __future__ import annotations

from collections.abc import Sequence

from embrew.text.tokens import Row, Segment


def truncated(head: Row, room: int, segment: Segment) -> Row:
    """Return the first `room` positions of a row that ends with its text.

    Raises:
        ValueError: nothing of the text would be left.
    """
    start = _start(head, segment)
    if start >= room:
        raise ValueError(
            f"max_length leaves {room} tokens before the suffix, and BOS with the instruction already takes {start}; "
            "raise max_length or shorten the instruction"
        )
    return Row(head.ids[:room], head.segments[:room])


def repeated(
    head: Row, between: Row, again: Sequence[int] | None, suffix: Row, *, max_length: int | None, segment: Segment
) -> Row:
    """Return a row with its text twice; both copies lose the same number of tokens where the limit requires it.

    Args:
        head: a row that ends with its text.
        between: the words between both copies.
        again: ids of the second copy; None: those of the first.
        suffix: what follows the second copy.
        max_length: limit of the whole row.
        segment: label of the first copy; the second is ECHO.

    Raises:
        ValueError: the limit leaves no token for one of the copies.
    """
    start = _start(head, segment)
    text = head.ids[start:]
    again = text if again is None else again
    if max_length is not None:
        room = max_length - start - len(between.ids) - len(suffix.ids)
        if room < 2:
            raise ValueError(
                f"max_length={max_length} leaves {max(room, 0)} tokens for the text and its repetition after the "
                f"template's own {max_length - room}; raise max_length or shorten the instruction"
            )
        text, again = text[: room // 2], again[: room // 2]
    before = Row(head.ids[:start], head.segments[:start])
    return before + Row.of(text, segment) + between + Row.of(again, Segment.ECHO) + suffix


def _start(row: Row, segment: Segment) -> int:
    """Return the position at which the text of a row begins."""
    return next((i for i, label in enumerate(row.segments) if label == segment), len(row.ids))
