"""Split texts at the character where they were truncated."""

from __future__ import annotations

from collections.abc import Sequence

from embrew.text.template import Template
from embrew.text.texts import PREPARATIONS
from embrew.text.tokens import Row, Segment
from embrew.text.whole import characters_kept


def split_where_truncated(
    template: Template, texts: Sequence[str], rows: Sequence[Row], *, instruction: str = ""
) -> list[tuple[str, str]]:
    """Return the part of each text that its row holds, and the part removed; together they are the prepared text.

    A character of which only some tokens are left counts as removed. For templates whose words after the text are
    `separate`.
    """
    prepared = [PREPARATIONS[template.preparation](text) for text in texts]
    before = template.around(instruction)[0]
    encodings = template.strings.encode([before + text for text in prepared], places=True)
    found = []
    for text, row, encoding in zip(prepared, rows, encodings, strict=True):
        size = characters_kept(encoding, len(before), len(text), row.segments.count(Segment.TEXT))
        found.append((text[:size], text[size:]))
    return found
