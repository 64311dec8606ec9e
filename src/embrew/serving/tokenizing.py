"""Threads that tokenise."""

from __future__ import annotations

import asyncio
import copy
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from embrew.serving.asked import Reader

Result = TypeVar("Result")


class TokenizerPool:
    """Threads with a copy of a model's text side each, since tokenizers keep settings between calls.

    Attributes:
        running: calls that have not returned.
    """

    def __init__(self, threads: int) -> None:
        self.threads, self.running = threads, 0
        self._readers: queue.SimpleQueue[Reader] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="embrew-tokenizer")

    def open(self, reader: Reader) -> None:
        """Give the text side to the threads."""
        for _ in range(self.threads):
            self._readers.put(copy.deepcopy(reader))

    async def __call__(self, work: Callable[[Reader], Result]) -> Result:
        """Return what a function makes of the text side, in one of the threads."""

        def run() -> Result:
            reader = self._readers.get()
            try:
                return work(reader)
            finally:
                self._readers.put(reader)

        self.running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, run)
        finally:
            self.running -= 1

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
