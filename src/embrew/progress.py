"""Progress of long work: a live bar on a terminal, timed log lines elsewhere, or nothing."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Self

from tqdm import tqdm
from tqdm.auto import tqdm as notebook_or_terminal

Style = Literal["bar", "lines", "off"]
EVERY = 20.0  # seconds between two log lines

logger = logging.getLogger(__name__)
_style: Style | None = None
_context: ContextVar[str] = ContextVar("context", default="")
_shared: ContextVar[Bar | None] = ContextVar("shared", default=None)


def set_style(style: Style | None) -> None:
    """Set how this process shows progress; None: as each call asks."""
    global _style
    _style = style


def is_chosen() -> bool:
    """Return True where `set_style` chose bars or log lines for the whole process, as the command line does."""
    return _style in ("bar", "lines")


def shows_bars() -> bool:
    """Return True where `set_style` chose bars for the whole process."""
    return _style == "bar"


def terminal_style() -> Style:
    """Return `bar` where stderr is a terminal, otherwise `lines`."""
    return "bar" if sys.stderr.isatty() else "lines"


def in_context(text: str) -> str:
    """Return a text after the name that `within` set, if any."""
    name = _context.get()
    return f"{name}: {text}" if name else text


@contextmanager
def within(name: str) -> Iterator[None]:
    """Put a name, such as that of a task, before the description of each bar (and before scores: `in_context`)."""
    token = _context.set(name)
    try:
        yield
    finally:
        _context.reset(token)


def progress(total: int | None, description: str, unit: str, *, show: bool | None = None, initial: int = 0) -> Bar:
    """Return a progress bar, as a context manager; within `Bar.shared`, a part of that bar.

    Args:
        total: number of units; None if it is unknown.
        description: what is being done.
        unit: singular, such as `text`.
        show: True: a bar, unless `set_style` chose something else; False: nothing; None: a bar on a terminal, log
            lines elsewhere.
        initial: units that were done earlier; they do not count for the rate.
    """
    shared = _shared.get()
    if shared is not None and shared.unit == unit:
        return Bar(shared.bar, unit, is_part=True)
    style = _style or ("bar" if show else terminal_style())
    if show is False or style == "off":
        return Bar(tqdm(disable=True, total=total, initial=initial), unit)
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 80
    bar = (LogLines if style == "lines" else notebook_or_terminal)(
        desc=in_context(description),
        total=total,
        unit=unit,
        initial=initial,
        leave=False,
        dynamic_ncols=columns > 0,
        ncols=None if columns else 80,  # some terminals, as a container's, report 0 columns
    )
    return Bar(bar, unit)


class Bar:
    """A progress bar, or one call's part of a bar that several calls share."""

    def __init__(self, bar: tqdm, unit: str, *, is_part: bool = False) -> None:
        self.bar, self.unit, self.is_part = bar, unit, is_part

    def update(self, count: int = 1) -> None:
        """Add units."""
        self.bar.update(count)

    def reach(self, count: int) -> None:
        """Add what is missing up to `count` units."""
        self.update(max(count - self.bar.n, 0))

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let calls in this context, which would each show a bar of the same unit, advance this one."""
        token = _shared.set(self)
        try:
            yield
        finally:
            _shared.reset(token)

    def note(self, text: str) -> None:
        """Show a text after the rate."""
        self.bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Remove the bar from the terminal, unless it is a part."""
        if not self.is_part:
            self.bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LogLines(tqdm):
    """A bar that is written as a log line every 20 seconds."""

    def __init__(self, **options: Any) -> None:
        file = io.StringIO()  # what tqdm writes to move its cursor
        self.logged_at = float("-inf")
        super().__init__(**options, file=file, mininterval=EVERY, maxinterval=EVERY, delay=EVERY)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log count, share, rate, elapsed and remaining time. `msg` is what tqdm clears its line with."""
        if msg is None and self._time() - self.logged_at >= 0.9 * EVERY:
            self.logged_at = self._time()
            logger.info("%s", self.line())

    def line(self) -> str:
        """Return the log line."""
        state = self.format_dict
        done, total, elapsed = state["n"], state["total"], state["elapsed"]
        rate = state["rate"] or ((done - state["initial"]) / elapsed if elapsed else 0.0)
        unit = f"{state['unit']}s"
        counted = f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit} ({done / max(total, 1):.0%})"
        parts = [counted, f"{rate:,.1f} {unit}/s" if rate >= 1 or not rate else f"{1 / rate:,.1f} s/{unit[:-1]}"]
        parts.append(f"{self.format_interval(elapsed)} elapsed")
        if total is not None and rate:
            parts.append(f"{self.format_interval((total - done) / rate)} remaining")
        extra = f", {state['postfix']}" if state["postfix"] else ""
        return f"{self.desc}  {', '.join(parts)}{extra}"


@contextmanager
def beside_bars() -> Iterator[None]:
    """Clear this process's bars while the block writes to the terminal.

    Log lines in place of bars hold tqdm's lock while they are logged, so it is not taken here for them.
    """
    if _style != "bar":
        yield
        return
    with tqdm.external_write_mode(file=sys.stderr):
        yield
