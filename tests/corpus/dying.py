"""A text encoder whose process is killed (SIGKILL) while it encodes certain texts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.stub import Stub

DEATHS = "EMBREW_TEST_DEATHS"  # names a folder with a file per text: the seconds after which the process is killed
AGAIN = "again"  # in a file: each process that encodes the text is killed


def die_at(folder: Path, deaths: dict[str, str]) -> None:
    """Let the processes die that encode these texts."""
    folder.mkdir()
    for number, (text, seconds) in enumerate(deaths.items()):
        (folder / f"{number}.text").write_text(text)
        (folder / f"{number}.when").write_text(seconds)


def died(folder: Path) -> int:
    """Return how many processes were killed."""
    return sum(len(path.read_text().split()) for path in folder.glob("*.died"))


def _die(when: Path, record: Path) -> None:
    try:
        seconds = when.read_text()
    except FileNotFoundError:
        return
    if seconds != AGAIN:
        when.unlink()
    with record.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if seconds == AGAIN:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()


def open_dying() -> Stub:
    """Return a stub that dies; for manifests it is the same encoder."""
    stub = Stub(wait=0.1)
    encode = stub.encode

    def dying(inputs: Sequence[str], **options: Any) -> np.ndarray:
        for path in Path(os.environ[DEATHS]).glob("*.text"):
            if path.read_text() in inputs:
                _die(path.with_suffix(".when"), path.with_suffix(".died"))
        return encode(inputs, **options)

    stub.encode = dying  # type: ignore[method-assign]
    return stub
