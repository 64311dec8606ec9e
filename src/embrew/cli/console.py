"""What the terminal shows: results on stdout, log lines and errors on stderr, both from the first process only."""

from __future__ import annotations

import logging
import os

from rich.console import Console
from rich.text import Text


def rank() -> int:
    """Which of the launcher's processes this is."""
    return int(os.environ.get("RANK", "0"))


def out() -> Console:
    """Results. Silent on all processes but the first."""
    return Console(quiet=rank() != 0, highlight=False)


def err() -> Console:
    """Log lines and errors."""
    return Console(stderr=True, highlight=False)


class TerminalHandler(logging.Handler):
    """A log record as one line on stderr; from WARNING on it says so."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        warns = record.levelno >= logging.WARNING
        text = f"{record.levelname.lower()}: {record.getMessage()}" if warns else record.getMessage()
        err().print(Text(text, style="yellow" if warns else ""), soft_wrap=True)


def log_to_terminal() -> None:
    """Show embrew's own log lines: all from INFO on the first process, warnings on the others."""
    logger = logging.getLogger("embrew")
    logger.setLevel(logging.INFO if rank() == 0 else logging.WARNING)
    if not any(isinstance(handler, TerminalHandler) for handler in logger.handlers):
        logger.addHandler(TerminalHandler())
