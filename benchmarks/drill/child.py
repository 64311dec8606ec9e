"""The process of one item: run its function and write its result."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from drill.record import Result
from drill.schedule import Item


class Skipped(Exception):
    """What an item is measured on is not on this machine."""


def run(item: Item, answer: Path, *, pretended: bool) -> None:
    """Run an item and write its result.

    The item's function returns `figures`, by name, and may return `checks`, by name, which must all hold.
    """
    _end_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # sent at the time limit
    write(answer, outcome(item, pretended=pretended))


def outcome(item: Item, *, pretended: bool) -> Result:
    """Return how an item ended: an exception is a failure, and is printed."""
    around: Any = nullcontext()
    try:
        if pretended:
            around = import_module("drill.pretend").pretended()
        with around:
            found = function_of(item)(**item.given)
    except Skipped as error:
        return {"status": "skipped", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"status": "failed", "reason": f"{type(error).__name__}: {str(error).strip()[:500]}"}
    checks = found.get("checks", {})
    return {"status": "passed" if all(checks.values()) else "failed", **found}


def function_of(item: Item) -> Callable[..., Result]:
    """Return what an item runs."""
    module, _, name = item.run.partition(":")
    found: Callable[..., Result] = getattr(import_module(module), name)
    return found


def write(answer: Path, result: Result) -> None:
    """Write a result as a whole."""
    partial = answer.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    os.replace(partial, answer)


def _end_with_parent() -> None:
    """End this process when the drill is killed, so that the GPU is free for the next call."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
