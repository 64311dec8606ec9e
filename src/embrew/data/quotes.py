"""Decide, by one rule for a whole table, whether its quotes enclose cells, as pandas and Excel write them.

A quote opens a cell at its beginning and closes it at its end; inside, it stands twice. Such a cell may have several
lines. A quote anywhere else breaks the rule.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

INSIDE = '(?:[^"]++|"")*+'


class Finding(NamedTuple):
    """What the quotes of a table are.

    Attributes:
        kind: `broken`: they break the rule; `rows`: they keep it, and a cell of several lines is as many whole rows
            if quotes have no meaning; `lines`: the same in a table of one column.
        line: number of the line.
        reason: description of the quote, for messages.
    """

    kind: Literal["broken", "rows", "lines"]
    line: int
    reason: str

    def is_refused(self, separator: str) -> bool:
        """Return whether the table is not read: with tabs, one that breaks the rule is read without quoting."""
        return self.kind == "rows" or (self.kind == "broken" and separator != "\t")


def check_quotes(lines: Iterable[str], separator: str, columns: int) -> Finding | None:
    """Return what is wrong with the quotes of a table, or doubtful; None: nothing.

    Args:
        lines: lines of the table, with their ends.
        separator: separator of cells.
        columns: number of columns.
    """
    edge = re.escape(separator)
    cell = rf'(?:"{INSIDE}"|[^"{edge}\r\n]*+)'
    complete = re.compile(rf"{cell}(?:{edge}{cell})*+[\r\n]*+")
    opened = re.compile(rf'(?:{cell}{edge})*+"{INSIDE}')
    doubtful: Finding | None = None
    start = number = 0  # the line in which an open cell begins; 0: none is open
    are_rows = True
    for number, line in enumerate(lines, start=1):
        if not start and '"' not in line:
            continue
        are_rows = are_rows and line.count(separator) == columns - 1
        if '"' not in line:
            continue
        text = f'"{line}' if start else line
        if complete.fullmatch(text):
            if start and are_rows and doubtful is None:
                what = f"a quoted cell goes on to line {number}"
                doubtful = Finding("rows" if columns > 1 else "lines", start, what)
            start, are_rows = 0, True
        elif opened.fullmatch(text):
            start = start or number
        else:
            if start:
                return Finding("broken", start, f"a quote opens a cell that is not closed at its end (line {number})")
            return Finding("broken", number, "a quote neither opens a cell nor closes it")
    if start:
        return Finding("broken", start, "a quote opens a cell that is never closed")
    return doubtful
