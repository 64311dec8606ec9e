"""Threads that tokenise."""

from __future__ import annotations

import asyncio
import copy
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from embrew.serving.asked import Asked, Read, Reader
from embrew.serving.wire import Text

Result = TypeVar("Result")
AT_ONCE = 20_000  # characters (or token ids) that a thread reads before it turns to another request


class TokenizerPool:
    """Threads with a copy of a model's text side each, since tokenizers keep settings between calls.

    Attributes:
        running: calls that have not returned.
    """

    def __init__(self, threads: int) -> None:
        self.threads, self.running = threads, 0
        self._readers: queue.SimpleQueue[Reader] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="embrew-tokenizer")
        self._long = asyncio.Semaphore(max(1, threads - 1))  # a thread stays free for other requests

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

    async def read(self, texts: list[Text], asked: Asked) -> Read:
        """Return texts as the engine takes them; other requests take turns with the parts of a large one.

        Raises:
            ApiError: they cannot be read so.
        """
        parts, prompt = [], len(asked.prompt or "")
        for first, some in _parts(texts, prompt):
            work = partial(_read, texts=some, asked=asked, first=first)
            if len(some[0]) + prompt > AT_ONCE:
                async with self._long:
                    parts.append(await self(work))
            else:
                parts.append(await self(work))
        return Read.joined(parts)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _read(reader: Reader, *, texts: list[Text], asked: Asked, first: int) -> Read:
    return reader.read(texts, asked, first=first)


def _parts(texts: list[Text], prompt: int) -> Iterator[tuple[int, list[Text]]]:
    """Yield texts in parts of at most `AT_ONCE` characters, or of one text, each with the number of its first text."""
    first = size = 0
    for place, text in enumerate(texts):
        size += len(text) + prompt
        if size > AT_ONCE and place > first:
            yield first, texts[first:place]
            first, size = place, len(text) + prompt
    yield first, texts[first:]
