"""Workers in processes of their own, one per device."""

from __future__ import annotations

from collections.abc import Sequence

from embrew.serving.asked import Engine
from embrew.serving.opening import Served
from embrew.serving.settings import Settings


def open_in_processes(settings: Settings) -> tuple[Served, Sequence[Engine]]:
    """Open the model in every process; return its text side, and one engine per process."""
    raise NotImplementedError
