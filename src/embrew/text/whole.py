"""Tokenise a text and the words around it as one string, and find the tokens of the text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Encoding

from embrew.text.strings import Strings
from embrew.text.tokens import Row, Segment


class Frame(NamedTuple):
    """A text and the words around it; with `between`, the text is repeated after these words."""

    before: str
    text: str
    between: str | None
    after: str


def whole_rows(strings: Strings, frames: Sequence[Frame], segment: Segment) -> list[Row]:
    """Return each frame as one string in tokens, without special tokens.

    A token that touches the text is labelled `segment` (ECHO in its repetition), even if it holds a character of other
    words; everything else is PROMPT.
    """
    rendered = []
    for before, text, between, after in frames:
        rendered.append(before + text + ("" if between is None else between + text) + after)
    encodings = strings.encode(rendered, places=True) if rendered else []
    return [_labelled(frame, encoding, segment) for frame, encoding in zip(frames, encodings, strict=True)]


def _labelled(frame: Frame, encoding: Encoding, segment: Segment) -> Row:
    begin, size = len(frame.before), len(frame.text)
    first, last = touching(encoding, begin, begin + size)
    labels = [int(Segment.PROMPT)] * first + [int(segment)] * (last - first)
    if frame.between is not None:
        begin += size + len(frame.between)
        start, stop = touching(encoding, begin, begin + size)
        start, stop = max(start, last), max(stop, last)
        labels += [int(Segment.PROMPT)] * (start - last) + [int(Segment.ECHO)] * (stop - start)
    ids = encoding.ids
    return Row(ids, labels + [int(Segment.PROMPT)] * (len(ids) - len(labels)))


def touching(encoding: Encoding, begin: int, end: int) -> tuple[int, int]:
    """Return the tokens that touch the characters from `begin` up to `end`: index of the first, and after the last.

    Byte-level tokenizers leave a space at the edge of a token out of its offsets; such a space touches nothing.
    """
    stop = bisect_left(encoding.offsets, (end, 0))
    if begin == end:
        return stop, stop
    first = tokens_before(encoding, begin)
    return first, max(first, stop)


def characters_kept(encoding: Encoding, begin: int, size: int, count: int) -> int:
    """Return the number of characters of a text at `begin` that its first `count` tokens hold completely."""
    first, last = touching(encoding, begin, begin + size)
    if first + count >= last:
        return size
    return min(max(encoding.offsets[first + count][0] - begin, 0), size)


def tokens_before(encoding: Encoding, begin: int) -> int:
    """Return the number of tokens that end at or before character `begin`; a token beyond it belongs to the text."""
    first = encoding.char_to_token(begin)
    if first is None:  # nothing follows, or a character that the tokenizer drops
        first = next((i for i, (_, end) in enumerate(encoding.offsets) if end > begin), len(encoding.ids))
    return int(first)
