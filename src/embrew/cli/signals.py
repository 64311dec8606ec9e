"""End a command with one line and an exit code: on a user's error, on Ctrl-C, and on SIGTERM.

Schedulers send SIGTERM before they take a machine away.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
import typer
from rich.text import Text
from typer.core import TyperGroup

from embrew.cli.console import err, log_to_terminal, rank, show_json_only

USER_ERRORS = (ValueError, TypeError, OSError)
"""Errors that a user can correct, beside packages of extras that are missing. Other errors keep their traceback."""

COMPARES = ("parity",)
"""Commands that exit with 1 where they find a difference, and with 2 on an error, as `diff` does."""

SAME_REQUEST = 1.0  # seconds in which launcher and scheduler may both send the signal of one request

SHORT_HELP = {
    "install_completion": "Install completion for this shell.",
    "show_completion": "Print completion for this shell.",
}
"""Typer's own help of these options takes five lines, and all commands should fit one screen."""

AGAIN = 0.05  # seconds until SIGTERM is repeated where Python would ignore the exception

_first: float | None = None  # time of the SIGTERM
_owner = os.getpid()
_raised: weakref.ref[Terminated] | None = None
_ends = False  # the command is being stopped


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM; the process ends as on Ctrl-C, with exit code 143."""


def listen() -> None:
    """Raise `Terminated` in the main thread at the first SIGTERM; a second one ends the process at once."""
    global _owner
    if threading.current_thread() is threading.main_thread():
        _owner = os.getpid()
        signal.signal(signal.SIGTERM, _stop)


def exit_code(error: BaseException) -> int | None:
    """Return the exit code of a command that was stopped: 143 by SIGTERM, 130 by Ctrl-C; None if it was not.

    Whatever fails after SIGTERM, such as a worker process that the same signal ended, is part of stopping.
    """
    global _ends
    _ends = _first is not None
    if isinstance(error, Terminated) or (_first is not None and isinstance(error, Exception)):
        return 128 + signal.SIGTERM
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


@contextmanager
def stopping(status: Callable[[], str]) -> Iterator[None]:
    """End a command that was stopped with its exit code and a line on stderr, which the first process prints.

    Args:
        status: returns what is finished, and how to resume.
    """
    try:
        yield
    except BaseException as error:
        code = exit_code(error)
        if code is None:
            raise
        if rank() == 0:
            err().print(f"\nstopped; {status()}", markup=False, soft_wrap=True)
        raise typer.Exit(code) from None


def _stop(number: int, frame: FrameType | None) -> None:
    global _first
    if os.getpid() != _owner:  # forked, and it has not set up its own signals yet
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    now = time.monotonic()
    if _first is None:
        if _is_ignored(frame):
            _repeat()
            return
        _first = now
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or PyTorch raises an error for workers that got the signal too
        raise _terminated()
    if "RANK" in os.environ and now - _first < SAME_REQUEST:
        return
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _is_ignored(frame: FrameType | None) -> bool:
    """Whether an exception raised in a frame would be printed and dropped: in finalisers and weakref callbacks."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename.endswith(("weakref.py", "_weakrefset.py")):
            return True
        frame = frame.f_back
    return False


def _terminated() -> Terminated:
    """Return the exception to raise; if a library ignores it and continues, SIGTERM is repeated."""
    global _raised
    error = Terminated()
    _raised = weakref.ref(error, _dropped)
    return error


def _dropped(_: object) -> None:
    global _first
    if not _ends and os.getpid() == _owner:
        _first = None
        _repeat()


def _repeat() -> None:
    timer = threading.Timer(AGAIN, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()


class Commands(TyperGroup):
    """Command group that prints `error: …` and exits with 1 or 2 on a user's error, 130 on Ctrl-C, 143 on SIGTERM."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options."""
        options: list[Any] = list(super().get_params(ctx))
        for option in options:
            option.help = SHORT_HELP.get(option.name, option.help)
        return options

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        log_to_terminal()
        show_json_only(False)
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, typer.Exit, click.ClickException, click.Abort):  # the first: `recipe show ... | head`
            raise
        except BaseException as error:
            code = exit_code(error)
            if code is not None:
                if rank() == 0:
                    err().print("stopped; nothing unfinished was written; give the same command again")
                raise typer.Exit(code) from None
            if ctx.params.get("debug") or not is_of_user(error):
                raise
            where = f" (process {rank()})" if rank() else ""
            err().print(Text(f"error{where}: {message(error)}"), style="bold red", soft_wrap=True)
            raise typer.Exit(2 if ctx.invoked_subcommand in COMPARES else 1) from None


def is_of_user(error: BaseException) -> bool:
    """Return whether a user can correct an error; import errors only if embrew raises them, without a module."""
    return isinstance(error, USER_ERRORS) or (isinstance(error, ImportError) and error.name is None)


def message(error: BaseException) -> str:
    """Return the message of an exception."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
