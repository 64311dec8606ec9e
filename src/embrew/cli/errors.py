"""One place where a user's mistake becomes one line and an exit code."""

from __future__ import annotations

from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from embrew.cli.console import err, log_to_terminal, rank

USER_ERRORS = (ValueError, TypeError, OSError)
"""What we raise for things a user can mend. Anything else is our own mistake and keeps its traceback."""


class Commands(TyperGroup):
    """Runs a verb; prints `error: ...` and exits with 1 where it was used wrongly, with 130 on Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        log_to_terminal()
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `embrew recipe show ... | head`
            raise
        except USER_ERRORS as error:
            if ctx.params.get("debug"):
                raise
            where = f" (process {rank()})" if rank() else ""
            err().print(Text(f"error{where}: {message(error)}"), style="bold red", soft_wrap=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            if rank() == 0:
                err().print("stopped")
            raise typer.Exit(130) from None


def message(error: BaseException) -> str:
    """What an exception says, in one paragraph."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
