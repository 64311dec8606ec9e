"""Probes that behave badly, for the tests of how they are run."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

from embrew.doctor.finding import Finding


def fine() -> Finding:
    print("noise on stdout")  # noqa: T201
    return Finding("fine", "ok", "all well")


def broken() -> Iterator[Finding]:
    yield Finding("first", "ok", "found before the error")
    raise RuntimeError("broken in two lines\nof which this is the second")


def crash() -> Finding:
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def hang() -> Finding:
    time.sleep(60)
    raise AssertionError


def leave() -> Finding:
    raise SystemExit(3)
