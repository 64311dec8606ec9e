"""Output: results on stdout, log lines and errors on stderr, both from the first process only."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from embrew import progress

Record = dict[str, Any]  # values by name: a JSON document, an entry of one, or a row of a table
_json_only = False


def rank() -> int:
    """Return the rank of this process; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def out() -> Console:
    """Return the console for results; silent on all processes but the first, and with --json."""
    return Console(quiet=rank() != 0 or _json_only, highlight=False)


def print_line(*parts: str | tuple[str, str]) -> None:
    """Print a line of results, of texts or of pairs with a style: brackets are no markup, and the terminal wraps it."""
    out().print(Text.assemble(*parts), soft_wrap=True)


def print_table(
    names: Iterable[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    left: Collection[str] = ("",),
    bold: Collection[str] = (),
    wraps: Collection[str] = (),
    title: str | None = None,
) -> None:
    """Print a table without lines; brackets are no markup.

    Args:
        names: heads of the columns.
        rows: cells, one sequence per row; missing ones are empty.
        left: columns that are aligned on the left; the others, numbers, on the right.
        bold: columns in bold.
        wraps: columns whose words may be broken over several lines.
        title: title above the table.
    """
    names = list(names)
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", show_header=any(names))
    for name in names:
        table.add_column(
            Text(name),
            justify="left" if name in left else "right",
            style="bold" if name in bold else "",
            no_wrap=name in bold and name not in wraps,
            overflow="fold" if name in wraps else "ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out().print(table)


def show_json_only(enabled: bool) -> bool:
    """Print only a JSON document to stdout if `enabled`, else tables and text; return `enabled`."""
    global _json_only
    _json_only = enabled
    return enabled


def print_json(document: Record) -> None:
    """Print the result of a command as one JSON document if --json is given; numbers that are not finite are null."""
    if _json_only and rank() == 0:
        text = json.dumps(document, default=lambda value: value.item() if hasattr(value, "item") else str(value))
        finite = json.loads(text, parse_constant=lambda _: None)
        typer.echo(json.dumps(finite, indent=2, ensure_ascii=False))


def can_ask() -> bool:
    """Return whether a user at a terminal can answer questions of this process."""
    return rank() == 0 and sys.stdin.isatty() and sys.stderr.isatty()


def show_transfers() -> None:
    """Show the bars of uploads and downloads on a terminal only, and not with --quiet."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if progress.shows_bars() else disable_progress_bars)()


def err() -> Console:
    """Return the console for log lines and errors."""
    return Console(stderr=True, highlight=False)


class TerminalHandler(logging.Handler):
    """Handler that prints a log record as one line on stderr, prefixed with its level from WARNING up."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        warns = record.levelno >= logging.WARNING
        text = f"{record.levelname.lower()}: {record.getMessage()}" if warns else record.getMessage()
        with progress.beside_bars():
            err().print(Text(text, style="yellow" if warns else ""), soft_wrap=True)


def command_line() -> str:
    """Return the command that runs, as it is typed."""
    return shlex.join(["embrew", *sys.argv[1:]])


def loading(what: object) -> None:
    """Log what is being loaded, since importing the libraries takes seconds."""
    logging.getLogger("embrew").info("loading %s", what)


def quiet(enabled: bool) -> bool:
    """Show results, warnings and errors only if `enabled`: no progress, no other log lines; return `enabled`."""
    if enabled:
        progress.set_style("off")
        logging.getLogger("embrew").setLevel(logging.WARNING)
    return enabled


def log_to_terminal() -> None:
    """Print embrew's own log records: from INFO up on the first process, from WARNING up on the others."""
    progress.set_style(progress.terminal_style() if rank() == 0 else "off")
    logger = logging.getLogger("embrew")
    logger.setLevel(logging.INFO if rank() == 0 else logging.WARNING)
    if not any(isinstance(handler, TerminalHandler) for handler in logger.handlers):
        logger.addHandler(TerminalHandler())
