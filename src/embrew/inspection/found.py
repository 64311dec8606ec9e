"""The result of an inspection."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

State = Literal["finished", "stopped", "running", "damaged", "unreadable", "empty", "unknown"]


@dataclass(frozen=True)
class Stage:
    """A stage of a training run.

    Attributes:
        name: of the stage.
        state: `finished`, `in progress` or `not begun`.
        step: optimiser steps of the newest complete checkpoint; None where the stage has none.
        steps: optimiser steps of the whole stage, where they are known.
        scores: after the stage, by data set.
    """

    name: str
    state: Literal["finished", "in progress", "not begun"]
    step: int | None = None
    steps: int | None = None
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def progress(self) -> str:
        """The number of steps, as text."""
        if self.state == "not begun":
            return ""
        if self.step is None:
            return "" if self.state == "finished" else "no checkpoint yet, starts at step 0"
        return f"step {self.step:,}" + (f" of {self.steps:,}" if self.steps else "")


@dataclass(frozen=True)
class Found:
    """What one folder holds.

    Attributes:
        path: the folder.
        state: `running` while another process holds the folder; `unreadable` of another format number, or without
            the permission to read it.
        summary: one line: how much there is, or where it stopped.
        facts: further lines.
        problems: what is missing or cannot be read, one line each.
        stages: of a training run.
        commands: by purpose: `resume`, `open`, `in Python`. Words in capitals were not stored and must be filled in.
        holds: what folders directly below it hold.
        kind: a name of `KINDS`, or `folder` for a folder of none of them.
    """

    path: Path
    state: State
    summary: str = ""
    facts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    commands: dict[str, str] = field(default_factory=dict)
    holds: tuple[Found, ...] = ()
    kind: str = "folder"


def command(*words: object) -> str:
    """Return an `embrew` command as one line of shell."""
    return shlex.join(["embrew", *map(str, words)])
