"""Workers in processes of their own: the model is opened there, and this process holds no weights."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import threading
from atexit import register, unregister
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch

from embrew.serving.asked import Engine, Key, WorkerDied
from embrew.serving.computing import compute_for
from embrew.serving.opening import Served
from embrew.serving.settings import Settings
from embrew.serving.worker import EngineError

logger = logging.getLogger(__name__)
WAITS = (0.0, 1.0, 4.0, 16.0)
"""Seconds before each attempt to start a process again; after the last one it is given up."""


def open_in_processes(settings: Settings) -> tuple[Served, Sequence[Engine]]:
    """Open the model in every process; return its text side, and one engine per process.

    Raises:
        ValueError, TypeError, OSError: as `open_served`.
        WorkerDied: a process ended while it opened the model.
    """
    devices = settings.devices or (None,)
    engines = []
    try:
        for number in range(settings.workers):
            engines.append(ProcessEngine(settings, devices[number % len(devices)], first=not number))
        served: list[Served] = []
        for engine in engines:
            engine.about = served[0].reader.about if served else None
            served.append(engine.opened())
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return served[0], engines


class ProcessEngine(Engine):
    """An engine in a process of its own, which ends with this one.

    Args:
        settings: the model, and the number of workers that share the cores.
        device: where it computes; None: the default one.
        first: its warnings are shown; those of the others are the same.

    Attributes:
        about: the model that it must open, as its reader describes it; None: whichever it opens first.
    """

    def __init__(self, settings: Settings, device: str | None, *, first: bool) -> None:
        self._given = settings, device, max(1, torch.get_num_threads() // settings.workers), first
        self._counts = {"prefix_hits": 0, "prefix_misses": 0, "prefix_bytes": 0}
        self._closed, self._starting = threading.Event(), threading.Lock()
        self._process: BaseProcess | None = None
        self.about: dict[str, Any] | None = None
        register(self.close)  # before multiprocessing waits at exit for processes that SIGTERM does not end
        self._start()

    def opened(self) -> Served:
        """Wait until the process has opened the model; return its text side.

        Raises:
            ValueError, TypeError, OSError: as `open_served`; the model is another one than before.
            RuntimeError: another error, which the process has written to stderr.
            WorkerDied: the process ended.
        """
        try:
            reader, batch_tokens, known = self._reply()
        except EngineError as error:
            if error.kind is RuntimeError:
                raise RuntimeError(str(error)) from None
            raise error.kind(error.message) from None
        if self.about not in (None, reader.about):
            raise ValueError("the model has changed since the server opened it; start the server again")
        self.about = reader.about
        return Served(reader, self, batch_tokens, known)

    def compute(self, key: Key, rows: Sequence[Any]) -> list[np.ndarray]:
        """Return the result for each text.

        Raises:
            EngineError: computing failed there.
            WorkerDied: the process ended.
        """
        if self._process is None or not self._process.is_alive():
            raise self._died(idle=True)
        try:
            self._pipe.send_bytes(pickle.dumps((key, rows)))
        except OSError as error:
            raise self._died(idle=True) from error
        results: list[np.ndarray]
        results, self._counts = self._reply()
        return results

    def counts(self) -> dict[str, int]:
        """Return those after the last batch."""
        return self._counts

    def restart(self) -> None:
        """Start the process again and wait until it has opened the model.

        Raises:
            WorkerDied: it ends or fails again and again, or the engine is closed.
        """
        why: Exception | None = None
        for wait in WAITS:
            if self._closed.wait(wait):
                break
            try:
                self._start()
                self.opened()
            except Exception as error:
                why = error
                logger.warning("a worker did not start: %s", error)
            else:
                logger.warning("the worker was started again")
                return
        raise WorkerDied(f"a worker did not start again: {why}")

    def close(self) -> None:
        """End the process."""
        self._closed.set()
        with self._starting:
            self._kill()
        unregister(self.close)

    def _start(self) -> None:
        """Start a process, in place of the one before."""
        context = multiprocessing.get_context("spawn")  # a fork would share threads' locks, and CUDA does not work
        with self._starting:
            if self._closed.is_set():
                raise WorkerDied("the server stops")
            self._kill()
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=compute_for, args=(theirs,), daemon=True, name="embrew-worker")
            with _signals_blocked():
                self._process.start()
            theirs.close()
            with suppress(OSError):  # it ended already, as `opened` finds
                self._pipe.send(self._given)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(5)

    def _reply(self) -> Any:
        """Return what the process sends next."""
        try:
            kind, *values = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 -- of our own process
        except (EOFError, OSError) as error:
            raise self._died() from error
        if kind == "error":
            raise EngineError(*values)
        return values

    def _died(self, *, idle: bool = False) -> WorkerDied:
        assert self._process is not None
        self._process.join(1)
        code = self._process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return WorkerDied(f"the process that computes ended: {how}", idle=idle)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes that SIGINT and SIGTERM do not end: they finish their texts, and end with this process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
