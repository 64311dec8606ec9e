"""Turn errors of users into one line on stderr and an exit code."""

from __future__ import annotations

from typing import Any

import click
import typer
from rich.text import Text
from typer.core import TyperGroup

from embrew.cli.console import err, log_to_terminal, rank, show_json_only
from embrew.cli.signals import exit_code

USER_ERRORS = (ValueError, TypeError, OSError)
"""Errors that a user can correct, beside packages of extras that are missing. Other errors keep their traceback."""

COMPARES = ("parity",)
"""Commands that exit with 1 where they find a difference, and with 2 on an error, as `diff` does."""


class Commands(TyperGroup):
    """Command group that prints `error: …` and exits with 1 or 2 on a user's error, 130 on Ctrl-C, 143 on SIGTERM."""

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
